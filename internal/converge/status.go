// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"context"
	"time"

	"github.com/gpuadm/gpuadm/internal/boottime"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A Status says what is converged and what is not, and since when.
type Status struct {
	Plan
	Instead    string `json:"instead_of_node_toml,omitempty"` // the last applied spec, if node.toml cannot be used
	Runs       []Run  `json:"runs"`                           // the runs that changed something, oldest first
	Made       []Mark `json:"made"`                           // what gpuadm has made on the machine
	Held       string `json:"held,omitempty"`                 // the run whose undo holds unattended applies
	Unfinished string `json:"unfinished,omitempty"`           // the run that a crash, a reboot or a signal cut short
	InProgress bool   `json:"in_progress,omitempty"`          // or that is still at work
	Undoing    bool   `json:"undoing,omitempty"`              // and it was an undo
	Repairing  string `json:"repairing,omitempty"`            // and it was a repair: the code of the fault
	Torn       int    `json:"torn,omitempty"`                 // the journal's last line, torn by a power cut
	Damaged    []int  `json:"damaged,omitempty"`              // the journal's lines that cannot be read otherwise
	Damage     string `json:"damage,omitempty"`               // what the journal has lost, and what to do about it

	Boot *boottime.Boot `json:"boot,omitempty"` // where the time of the machine's last boot went: status -v
}

// Mark is one thing that gpuadm has made, and whether it is still as gpuadm left it.
type Mark struct {
	Stage    string    `json:"stage"`
	Kind     string    `json:"kind"`
	Name     string    `json:"name"`
	Run      string    `json:"run"`
	Since    time.Time `json:"since"`
	Left     time.Time `json:"left"`               // when the last run that touched it ended
	Changed  bool      `json:"changed,omitempty"`  // its state was never gpuadm's: it was changed outside gpuadm
	Reverted bool      `json:"reverted,omitempty"` // it is as before gpuadm: after a reboot or a cut run
	State    State     `json:"-"`                  // it has now
	Unseen   string    `json:"unseen,omitempty"`   // why its state could not be read
	Released bool      `json:"released,omitempty"` // the spec no longer has its section: it stays until undo
	Drift    *Line     `json:"drift,omitempty"`    // if Changed or Reverted: gpuadm's state, the state found
}

// Pending is Status without Made: that would look at the Node object too, and a gate must not wait
// for an API server.
func (e *Engine) Pending(ctx context.Context, v host.View) (Status, error) {
	j := ReadJournal(v)
	s := Status{
		Runs:    []Run{},
		Made:    []Mark{},
		Held:    j.Held(),
		Torn:    j.Torn,
		Damaged: j.Damaged,
		Damage:  j.Damage(v),
	}
	last, open := j.unfinished()
	if open {
		s.Unfinished = last.ID
		s.Undoing = len(last.Undoes) > 0
		s.Repairing = last.Repair
	}

	runs := j.Runs()
	for _, run := range runs {
		if len(run.Makes) > 0 {
			s.Runs = append(s.Runs, run)
		}
	}

	f, err := e.Facts(ctx, v)
	if err == nil {
		s.Plan, err = e.planToPrint(ctx, machine{
			view:  v,
			facts: f,
			owned: present(runs),
			asked: j.asksForReboot(f.BootID),
		})
	}

	return s, err
}

// Status looks at everything and touches nothing.
func (e *Engine) Status(ctx context.Context, v host.View) (Status, error) {
	v = view.Snapshot(v)
	s, err := e.Pending(ctx, v)
	if err != nil {
		return s, err
	}

	asks := ReadJournal(v).asksForReboot(s.Host.Facts.BootID)
	for _, o := range present(s.Runs) {
		if !o.restored() {
			s.Made = append(s.Made, e.mark(ctx, v, o, asks[o.key]))
		}
	}

	sorting.By(s.Made, func(a, b Mark) int {
		return e.order(a.Stage) - e.order(b.Stage)
	})
	return s, nil
}

// mark looks at one thing that gpuadm has made. Until a reboot for which a change has asked, the
// thing is as gpuadm left it.
func (e *Engine) mark(ctx context.Context, v host.View, o owned, asksForReboot bool) Mark {
	m := Mark{
		Stage:    o.Stage,
		Kind:     o.Kind,
		Name:     o.Name,
		Run:      o.first.ID,
		Since:    o.first.Time,
		Left:     cmp.Or(o.last.Ended, o.last.Time),
		Released: spec.IsSection(o.section()) && !e.Spec.Has(o.section()),
	}

	thing, err := e.ThingOf(o.Ref) // fails where a newer gpuadm made it
	if err == nil {
		m.State, err = thing.Look(ctx, v)
	}
	if err != nil {
		m.Unseen = err.Error()
		return m
	}

	known := knows(o.makes, m.State)
	if m.State == o.After || known && asksForReboot {
		return m
	}
	partial, ok := thing.(Partial)
	if ok && partial.SamePart(o.makes[0].Before, o.After, m.State) {
		return m
	}
	m.Reverted = known
	m.Changed = !known
	drift := step{
		Line: Line{Change: Change{
			Stage:  o.Stage,
			Ref:    Ref{Kind: o.Kind, Name: o.Name},
			Before: o.After,
			After:  m.State,
		}},
		want: Want{Thing: thing},
	}.withDiff(v)
	m.Drift = &drift
	return m
}
