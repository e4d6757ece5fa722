// SPDX-FileCopyrightText: The gpuadm authors
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
	"github.com/gpuadm/gpuadm/stages"
)

func newDoctor(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "find what is broken on this machine, and name one fix",
		Long: `Doctor checks the GPUs, the driver, its packages and the system below them. It
names the root cause of what it finds, what that explains, the fix and what the
fix interrupts. It needs no spec and touches nothing. It needs no network: where
the API server answers kubelet within a second, it checks this machine's Node too.
What it cannot read it names as not checked. docs/doctor.md lists all codes.

It exits with 0 if it finds no fault, and with 3 if a fault is to be fixed.`,
		Example: "  gpuadm doctor\n  gpuadm doctor -v\n  gpuadm doctor -o json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.doctor(cmd.Context()) },
	}
}

func (c *common) doctor(ctx context.Context) error {
	h, err := c.open(c.rootDir)
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
	r, err := c.examine(ctx, h, h)
	if err != nil {
		return err
	}
	for i, cause := range r.Causes {
		if slices.ContainsFunc(stages.Repairs(), func(o stages.Repair) bool { return o.Code == cause.Code }) {
			r.Causes[i].Commands = []string{c.typed("repair " + cause.Code)}
		}
	}
	if err = show(c, r, c.doctorText); err == nil && len(r.Causes) > 0 {
		return exit(exitPending)
	}
	return err
}

// examine examines a machine by its node.toml, where it has one. One that cannot be used is named as not checked.
func (c *common) examine(ctx context.Context, h host.Host, v host.View) (doctor.Report, error) {
	s, err := c.spec(h, c.files)
	if err != nil && len(c.files) > 0 {
		return doctor.Report{}, err
	}
	r := doctor.Examine(ctx, v, s)
	if err != nil && !errors.Is(err, errNoSpec) {
		r.Unread = append(r.Unread, doctor.Unread{What: "what node.toml asks for", Why: strings.ReplaceAll(err.Error(), "\n", "; ")})
	}
	return r, nil
}

// doctorText prints a report: the root causes first, each with what to type.
func (c *common) doctorText(r doctor.Report) {
	w := c.stdout
	for _, cause := range r.Causes {
		printf(w, "%s %s  %s\n", c.colour(w, "!"), cause.Code, cause.Title)
		for _, f := range cause.Found {
			printf(w, "    %s\n", f.What)
		}
		printf(w, "    %s.\n", cause.Meaning)
		row := func(word string, lines ...string) { rows(w, 4, 11, word, lines...) }
		var explains []string
		for _, f := range cause.Explains {
			explains = append(explains, f.Code+"  "+f.What)
		}
		if more := len(explains) - 1; more > 0 && !c.verbose {
			explains = []string{explains[0], fmt.Sprintf("and %d more, which -v lists", more)}
		}
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
	for _, n := range r.Notes {
		printf(w, "Note: %s.\n", n.What)
	}
	for _, u := range r.Unread {
		printf(w, "Not checked: %s: %s\n", u.What, u.Why)
	}
	end := "No fault found"
	if n := len(r.Causes); n > 0 {
		end = count(n, "root cause")
	}
	printf(w, "%s, %s.\n", end, count(r.Checks, "check"))
}
