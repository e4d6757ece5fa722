// SPDX-FileCopyrightText: The gpuadm authors
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
	"github.com/gpuadm/gpuadm/internal/mask"
)

func newFacts(c *common) *cobra.Command {
	var record bool
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "show what machine this is",
		Long: `Facts prints what gpuadm knows about the machine: OS, kernel, GPUs on the
PCI bus, container engines, kubelet.

With --record it prints a recording of all that it read, as a txtar archive from
which tests can simulate the machine: attach it to a bug report. Only files that are known to hold no secrets are recorded with their
content; values of keys that look like secrets are masked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			if record {
				r := host.Record(h)
				if _, err := facts.Gather(cmd.Context(), r, facts.Everything); err != nil {
					return err
				}
				_, err := c.stdout.Write(r.Txtar())
				return err
			}
			f, err := facts.Gather(cmd.Context(), h, facts.Everything)
			if err != nil {
				return err
			}
			if c.output == "json" {
				return c.json(f)
			}
			printf(c.stdout, "%s\n", f)
			if c.verbose {
				text, err := json.MarshalIndent(f, "", "  ")
				if err != nil {
					return err
				}
				for line := range strings.SplitSeq(mask.Message(string(text)), "\n") {
					printf(c.stdout, "%s\n", line)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&record, "record", false, "print a recording of the machine, for a bug report or a test")
	return cmd
}

// withoutSpec shows what machine this is where an operator asks for its state and it has no spec; err is returned.
func (c *common) withoutSpec(ctx context.Context, err error) error {
	if h, openErr := c.open(c.rootDir); errors.Is(err, errNoSpec) && openErr == nil && c.output != "json" {
		if f, factsErr := facts.Gather(ctx, h, facts.Everything); factsErr == nil {
			printf(c.stdout, "%s\n", f)
		}
	}
	return err
}
