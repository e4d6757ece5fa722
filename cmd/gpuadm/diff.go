// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

func newDiff(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "diff [STAGE…]",
		Short: "show what was changed outside gpuadm since its last run, and what could have done it",
		Long: `Diff compares each thing that gpuadm has made with the state in which its last run
left it: files line by line. Beside it is what happened between that run and
the change and could have done it: entries of the package manager's log, files that
cloud-init wrote, daemons that were started. It touches nothing.

It exits with 0 if all is as gpuadm left it, and with 3 if something is not.`,
		ValidArgsFunction: stageNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, h, err := c.engineOfFiles(cmd.Context(), args)
			if err != nil {
				return err
			}
			s, err := e.Status(cmd.Context(), h)
			if err != nil {
				return err
			}
			s.Made = slices.DeleteFunc(s.Made, func(m converge.Mark) bool { return len(args) > 0 && !slices.Contains(args, m.Stage) })
			all := []drifted{}
			for _, m := range s.Made {
				if m.Drift != nil {
					when, events := suspects(cmd.Context(), h, m)
					all = append(all, drifted{Mark: m, When: when, Suspects: events})
				}
			}
			if c.output == "json" {
				err = c.json(driftList{converge.PlanFormat, all})
			} else {
				c.diffText(all, s)
			}
			if err == nil && len(all) > 0 {
				return exit(exitPending)
			}
			return err
		},
	}
}

// engineOfFiles makes ready to compare with the journal, which needs no spec: the journal has the digest of a run's spec only.
func (c *common) engineOfFiles(ctx context.Context, only []string) (*converge.Engine, host.Host, error) {
	e, h, err := c.engine(ctx, only, nil)
	if !errors.Is(err, errNoSpec) || len(c.files) > 0 {
		return e, h, err
	}
	if h, err = c.open(c.rootDir); err != nil {
		return nil, nil, err
	}
	_, thingOf := stages.Run(c.node)
	return &converge.Engine{Stages: []converge.Stage{}, ThingOf: thingOf, Version: version()}, h, nil
}

// driftList is what diff prints with -o json.
type driftList struct {
	Format int       `json:"format"`
	Drift  []drifted `json:"drift"`
}

// drifted is a thing that is not as gpuadm left it.
type drifted struct {
	converge.Mark
	When     time.Time `json:"when,omitzero"` // a file was changed last
	Suspects []suspect `json:"suspects,omitempty"`
}

func (c *common) diffText(all []drifted, s converge.Status) {
	w := c.stdout
	for _, d := range all {
		c.changeText(w, d.Stage, *d.Drift)
		what := "changed outside gpuadm"
		if d.Reverted {
			what = "it has an earlier state again"
		}
		printf(w, "               gpuadm left it at %s; %s", d.Left.Format(day), what)
		if !d.When.IsZero() {
			printf(w, ", at %s", d.When.Format(day))
		}
		printf(w, "\n")
		for i, x := range d.Suspects {
			word := "could be"
			if i > 0 {
				word = ""
			}
			printf(w, "               %-8s  %s  %s\n", word, x.Time.Format(time.DateTime), x.What)
		}
		if len(d.Suspects) == 0 {
			printf(w, "               No log says what has done it.\n")
		}
		printf(w, "\n")
	}
	switch {
	case len(s.Made) == 0:
		printf(w, "gpuadm has made nothing here.\n")
	case len(all) == 0:
		printf(w, "All %s are as gpuadm left them.\n", count(len(s.Made), "thing"))
	case len(s.Stages) == 0: // without a spec
		printf(w, "Not as gpuadm left it: %s. This machine has no node.toml, so there is no plan of what apply would change.\n", count(len(all), "thing"))
	default:
		printf(w, "Not as gpuadm left it: %s. To see what apply would change: %s\n", count(len(all), "thing"), c.typed("plan"))
	}
}
