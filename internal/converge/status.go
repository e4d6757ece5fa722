// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A Status says what stands and what does not, and since when.
type Status struct {
	Plan
	Runs       []Run  `json:"runs"`                 // of those that changed anything, oldest first
	Made       []Mark `json:"made"`                 // what of ours stands on the machine
	Held       string `json:"held,omitempty"`       // the run whose undo holds unattended applies
	Unfinished string `json:"unfinished,omitempty"` // the run that a crash, a reboot or a signal cut short
	Undoing    bool   `json:"undoing,omitempty"`    // and it was an undo
	Torn       int    `json:"torn,omitempty"`       // the journal's last line, where a power cut has torn it
	Damaged    []int  `json:"damaged,omitempty"`    // the journal's lines that cannot be read otherwise
	Damage     string `json:"damage,omitempty"`     // and what to do about them
}

// Mark is one thing that we have made, and whether it is still as we left it.
type Mark struct {
	Stage   string    `json:"stage"`
	Kind    string    `json:"kind"`
	Name    string    `json:"name"`
	Run     string    `json:"run"`
	Since   time.Time `json:"since"`
	Changed bool      `json:"changed,omitempty"` // someone else changed it since
	Unseen  string    `json:"unseen,omitempty"`  // why it could not be looked at
	LetGo   bool      `json:"letGo,omitempty"`   // the spec has its section no more: it stays until undo
}

// Standing is Status without a look at what was made: the Node object is part of that, and a gate must not wait for an API
// server.
func (e *Engine) Standing(ctx context.Context, v host.View) (Status, error) {
	j, err := ReadJournal(v)
	if err != nil {
		return Status{}, err
	}
	return e.standing(ctx, v, j)
}

func (e *Engine) standing(ctx context.Context, v host.View, j Journal) (s Status, err error) {
	s = Status{Held: j.Held(), Torn: j.Torn, Damaged: j.Damaged, Damage: damage(v, j.Damaged), Runs: []Run{}, Made: []Mark{}}
	if last, open := j.unfinished(); open {
		s.Unfinished, s.Undoing = last.ID, len(last.Undoes) > 0
	}
	s.Plan, err = e.plan(ctx, v, j)
	return s, err
}

// Pending is Status without Made: it looks only at what the stages want, and so at nothing of other stages, such as the
// cluster's.
func (e *Engine) Pending(ctx context.Context, v host.View) (Status, error) {
	s, _, err := e.status(ctx, v)
	return s, err
}

func (e *Engine) status(ctx context.Context, v host.View) (s Status, runs []Run, err error) {
	j, err := ReadJournal(v)
	if err != nil {
		return Status{}, nil, err
	}
	s = Status{Held: j.Held(), Torn: j.Torn, Damaged: j.Damaged, Damage: damage(v, j.Damaged), Runs: []Run{}, Made: []Mark{}}
	if s.Plan, err = e.plan(ctx, v, j); err != nil {
		return s, nil, err
	}
	if last, open := j.unfinished(); open {
		s.Unfinished, s.Undoing = last.ID, len(last.Undoes) > 0
	}
	runs = j.Runs()
	for _, run := range runs {
		if len(run.Makes) > 0 {
			s.Runs = append(s.Runs, run)
		}
	}
	return s, runs, nil
}

// Status looks at everything and touches nothing.
func (e *Engine) Status(ctx context.Context, v host.View) (Status, error) {
	s, runs, err := e.status(ctx, v)
	if err != nil {
		return s, err
	}
	for _, o := range standing(runs) {
		if o.back() {
			continue
		}
		m := Mark{Stage: o.Stage, Kind: o.Kind, Name: o.Name, Run: o.first.ID, Since: o.first.Time}
		t, err := e.ThingOf(o.Kind, o.Name) // fails where a newer gpuadm made it
		now := State("")
		if err == nil {
			now, err = t.Look(ctx, v)
		}
		if err != nil {
			m.Unseen = unseen{err}.Error()
		} else {
			m.Changed = now != o.links[len(o.links)-1].After
		}
		m.LetGo = spec.IsSection(o.section()) && !e.Spec.Has(o.section())
		s.Made = append(s.Made, m)
	}
	slices.SortStableFunc(s.Made, func(a, b Mark) int { return e.order(a.Stage) - e.order(b.Stage) })
	return s, nil
}

func (e *Engine) order(stage string) int {
	return slices.IndexFunc(e.Stages, func(s Stage) bool { return s.Name == stage })
}
