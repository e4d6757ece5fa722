// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/platform"
)

func newFacts(c *common) *cobra.Command {
	var record bool
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "show what machine this is",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir, nil)
			if err != nil {
				return err
			}
			if record {
				return c.record(cmd.Context(), h)
			}
			f, err := facts.Gather(cmd.Context(), view.Within(h), facts.Everything)
			if err != nil {
				return err
			}
			return show(c, f, c.factsText)
		},
	}
	cmd.Flags().BoolVar(&record, "record", false, "print a recording of the machine, for a bug report or a test")
	return cmd
}

// record prints a recording of the machine. On a terminal it escapes the lines, since some come
// from files that others write.
func (c *common) record(ctx context.Context, h host.Host) error {
	r := view.Record(view.Within(h), platform.Envs()...)
	if _, err := facts.Gather(ctx, r, facts.Everything); err != nil {
		return err
	}

	recording := r.Txtar()
	if !terminal(c.stdout) {
		_, err := c.stdout.Write(recording)
		return err
	}
	for line := range strings.Lines(string(recording)) {
		printf(c.stdout, "%s\n", whole(strings.TrimSuffix(line, "\n")))
	}
	return nil
}

// factsText prints a line, and with -v all facts.
func (c *common) factsText(f facts.Facts) {
	printf(c.stdout, "%s\n", f)
	if !c.verbose {
		return
	}

	text, _ := json.MarshalIndent(f, "", "  ") // facts can always be encoded
	for line := range strings.SplitSeq(mask.Message(string(text)), "\n") {
		printf(c.stdout, "%s\n", whole(line))
	}
}

// withoutSpec shows the facts of a machine without a spec, whose state an operator asks for; it
// returns err.
func (c *common) withoutSpec(ctx context.Context, err error) error {
	h, openErr := c.open(c.rootDir, nil)
	if openErr != nil || c.output == "json" || !errors.Is(err, errNoSpec) {
		return err
	}

	f, factsErr := facts.Gather(ctx, view.Within(h), facts.Everything)
	if factsErr == nil {
		printf(c.stdout, "%s\n", f)
	}
	return err
}
