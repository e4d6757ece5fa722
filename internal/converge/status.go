// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A Status says what is converged and what is not, and since when.
type Status struct {
	Plan
	Runs       []Run  `json:"runs"`                  // of those that changed anything, oldest first
	Made       []Mark `json:"made"`                  // what gpuadm has made on the machine
	Held       string `json:"held,omitempty"`        // the run whose undo holds unattended applies
	Unfinished string `json:"unfinished,omitempty"`  // the run that a crash, a reboot or a signal cut short
	InProgress bool   `json:"in_progress,omitempty"` // or that is still at work
	Undoing    bool   `json:"undoing,omitempty"`     // and it was an undo
	Repairing  string `json:"repairing,omitempty"`   // and it was a repair: the code of the fault
	Torn       int    `json:"torn,omitempty"`        // the journal's last line, where a power cut has torn it
	Damaged    []int  `json:"damaged,omitempty"`     // the journal's lines that cannot be read otherwise
	Damage     string `json:"damage,omitempty"`      // what of the journal cannot be read, and what to do about it
}

// Mark is one thing that gpuadm has made, and whether it is still as gpuadm left it.
type Mark struct {
	Stage    string    `json:"stage"`
	Kind     string    `json:"kind"`
	Name     string    `json:"name"`
	Run      string    `json:"run"`
	Since    time.Time `json:"since"`
	Left     time.Time `json:"left"`               // when the last run that touched it ended
	Changed  bool      `json:"changed,omitempty"`  // it is in a state that was never gpuadm's: changed outside gpuadm
	Reverted bool      `json:"reverted,omitempty"` // it is as before gpuadm: a reboot can do that, or a run that was cut short
	State    State     `json:"-"`                  // it has now
	Unseen   string    `json:"unseen,omitempty"`   // why its state could not be read
	Released bool      `json:"released,omitempty"` // the spec no longer has its section: it stays until undo
	Drift    *Change   `json:"drift,omitempty"`    // of what is Changed or Reverted: from gpuadm's state to the one found
}

// Pending is Status without a look at what was made, which the Node object is a part of: a gate must not wait for an API server.
func (e *Engine) Pending(ctx context.Context, v host.View) (s Status, err error) {
	j := ReadJournal(v)
	s = Status{Held: j.Held(), Torn: j.Torn, Damaged: j.Damaged, Damage: j.damage(v), Runs: []Run{}, Made: []Mark{}}
	if last, open := j.unfinished(); open {
		s.Unfinished, s.Undoing, s.Repairing = last.ID, len(last.Undoes) > 0, last.Repair
	}
	for _, run := range j.Runs() {
		if len(run.Makes) > 0 {
			s.Runs = append(s.Runs, run)
		}
	}
	f, err := e.Facts(ctx, v)
	if err == nil {
		s.Plan, err = e.shown(ctx, v, j, f)
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
	for _, o := range present(s.Runs) {
		if o.back() {
			continue
		}
		m := Mark{Stage: o.Stage, Kind: o.Kind, Name: o.Name, Run: o.first.ID, Since: o.first.Time, Left: o.last.Ended}
		if m.Left.IsZero() {
			m.Left = o.last.Time
		}
		t, err := e.ThingOf(o.Ref) // fails where a newer gpuadm made it
		now := State("")
		if err == nil {
			now, err = t.Look(ctx, v)
		}
		m.State = now
		if err != nil {
			m.Unseen = err.Error()
		} else if left := o.After; now != left {
			m.Reverted = knows(o.makes, now)
			m.Changed = !m.Reverted
			drift := step{Change: Change{Stage: o.Stage, Ref: Ref{Kind: o.Kind, Name: o.Name}, Before: left, After: now}, want: Want{Thing: t}}.show(v)
			m.Drift = &drift
		}
		m.Released = spec.IsSection(o.section()) && !e.Spec.Has(o.section())
		s.Made = append(s.Made, m)
	}
	slices.SortStableFunc(s.Made, func(a, b Mark) int { return e.order(a.Stage) - e.order(b.Stage) })
	return s, nil
}

func (e *Engine) order(stage string) int {
	return slices.IndexFunc(e.Stages, func(s Stage) bool { return s.Name == stage })
}
