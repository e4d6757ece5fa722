// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

func newDoctor(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "find what is broken on this machine, and name one fix",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return c.doctor(cmd.Context()) },
	}
}

func (c *common) doctor(ctx context.Context) error {
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return err
	}
	if !h.Live() {
		return usage{errors.New("cannot examine the files of another machine: doctor asks the kernel and the driver that run")}
	}
	gpus, err := new(facts.Cache).GPUs(h)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(gpus, facts.PCI.Display) && c.output != "json" {
		c.answer("No NVIDIA GPU on the PCI bus: nothing to examine here.")
		return nil
	}

	report, err := c.examine(ctx, h, view.Within(h))
	if err != nil {
		return err
	}
	repairs := stages.Repairs()
	for i := range report.Causes {
		cause := &report.Causes[i]
		if slices.ContainsFunc(repairs, func(r stages.Repair) bool { return r.Code == cause.Code }) {
			cause.Commands = []string{c.typed("repair " + cause.Code)}
		}
	}

	err = show(c, report, c.doctorText)
	if err == nil && len(report.Causes) > 0 {
		return exit(exitPending)
	}
	return err
}

// examine examines a machine, with its node.toml if it has one. It reports an unusable node.toml as
// not checked.
func (c *common) examine(ctx context.Context, h host.Host, v host.View) (doctor.Report, error) {
	s, err := c.spec(h, c.files)
	if err != nil && len(c.files) > 0 {
		return doctor.Report{}, err
	}

	r := doctor.Examine(ctx, v, s)
	if err != nil && !errors.Is(err, errNoSpec) {
		why := strings.ReplaceAll(err.Error(), "\n", "; ")
		r.Unread = append(r.Unread, doctor.Unread{What: "what node.toml asks for", Why: why})
	}
	return r, nil
}

// doctorText prints a report: the root causes first, each with the command to type.
func (c *common) doctorText(r doctor.Report) {
	w := c.stdout
	for _, cause := range r.Causes {
		c.causeText(cause)
	}
	for _, n := range r.Notes {
		printf(w, "Note: %s.\n", n.What)
	}
	for _, u := range r.Unread {
		printf(w, "Not checked: %s: %s\n", u.What, u.Why)
	}

	end := "No fault found"
	if n := len(r.Causes); n > 0 {
		end = trouble.Count(n, "root cause")
	}
	printf(w, "%s, %s.\n", end, trouble.Count(r.Checks, "check"))
}

// causeText prints one root cause.
func (c *common) causeText(cause doctor.Cause) {
	w := c.stdout
	printf(w, "%s %s  %s\n", c.colour(w, "!"), cause.Code, cause.Title)
	for _, f := range cause.Found {
		printf(w, "    %s\n", f.What)
	}
	printf(w, "    %s.\n", cause.Meaning)

	var explains []string
	for _, f := range cause.Explains {
		explains = append(explains, f.Code+"  "+f.What)
	}
	if more := len(explains) - 1; more > 0 && !c.verbose {
		explains = []string{explains[0], fmt.Sprintf("and %d more, which -v lists", more)}
	}
	row := func(word string, lines ...string) { rows(w, 4, 11, word, lines...) }
	row("explains", explains...)
	row("fix", cause.Fix)
	row("interrupts", cause.Interrupts)
	if cause.NoRepair != "" {
		row("no repair", cause.NoRepair)
	}
	row("type", cause.Commands...)
	if c.verbose {
		row("source", cause.Sources...)
	}
	printf(w, "\n")
}
