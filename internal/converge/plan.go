// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// PlanFormat is the version of the plan's JSON.
const PlanFormat = 1

// A Plan says what an apply would do. It is what `plan -o json` prints, and the text is rendered
// from it.
type Plan struct {
	Format    int         `json:"format"`
	Host      Host        `json:"host"`
	Stages    []StagePlan `json:"stages"`
	Changes   []Line      `json:"changes"`
	Converged int         `json:"converged"`       // wants that are converged
	Deferred  int         `json:"deferred"`        // changes that wait for an event
	Unknown   int         `json:"unknown"`         // things whose state could not be read
	State     Outcome     `json:"state"`           // all of this in one word
	Later     []Later     `json:"later,omitempty"` // values of the spec that only a later moment can judge
	Notes     []string    `json:"notes,omitempty"`

	// Reboot is the pending change for which a run of this boot has asked for a reboot; "" for none.
	Reboot string `json:"asks_for_reboot,omitempty"`
}

// Host names the machine and the spec that a plan is for.
type Host struct {
	Root    string      `json:"root"`
	Summary string      `json:"summary"`
	Spec    string      `json:"spec"` // the spec's digest
	Facts   facts.Facts `json:"facts"`
}

// StagePlan counts one stage's wants.
type StagePlan struct {
	Name      string `json:"name"`
	Converged int    `json:"converged"`
	Changes   int    `json:"changes"` // also those that are deferred, unknown, or cannot be made
}

// Cannot returns the changes that cannot be made.
func (p Plan) Cannot() []Line { return p.only(func(c Line) bool { return c.Cannot != "" }) }

// Unseen returns the changes to things whose state could not be read.
func (p Plan) Unseen() []Line { return p.only(func(c Line) bool { return c.Unknown != "" }) }

// Blind returns an error that names the things whose state could not be read; nil if there are none.
func (p Plan) Blind() error {
	t := reasons(p.Unseen())
	if t == nil {
		return nil
	}
	return t
}

// refused returns the changes that keep an apply from touching anything.
func (p Plan) refused() []Line { return p.only(func(c Line) bool { return c.refused() }) }

func (p Plan) only(wanted func(Line) bool) []Line {
	return slices.DeleteFunc(slices.Clone(p.Changes), func(c Line) bool { return !wanted(c) })
}

// Now counts the pending changes: those that an apply would make at once, and those that it cannot
// make.
func (p Plan) Now() int { return len(p.Changes) - p.Deferred - p.Unknown }

// Plan says what Apply would do, and touches nothing: a View cannot.
func (e *Engine) Plan(ctx context.Context, v host.View) (Plan, error) {
	j := ReadJournal(v)
	if j.Refused != nil {
		return Plan{}, j.Refused
	}

	v = view.Snapshot(v)
	f, err := e.Facts(ctx, v)
	if err != nil {
		return Plan{}, err
	}
	return e.planToPrint(ctx, machine{view: v, facts: f, owned: present(j.Runs()), asked: j.asksForReboot(f.BootID)})
}

// machine is what planning knows of the machine.
type machine struct {
	view  host.View
	facts facts.Facts
	owned []owned      // gpuadm's changes that are on the machine
	asked map[key]bool // things whose changes have asked for a reboot in this boot
}

// Facts gathers what the stages need to know of the machine. It caches what a run cannot change.
func (e *Engine) Facts(ctx context.Context, v host.View) (facts.Facts, error) {
	stages := e.Stages
	if slices.ContainsFunc(stages, func(st Stage) bool { return st.Whole }) {
		stages = slices.Concat(e.Before, stages)
	}

	var needs facts.Needs
	for _, st := range stages {
		if st.Needs != nil {
			needs = needs.And(st.Needs(e.Spec))
		}
	}

	e.cache.Memory = e.Memory
	f, err := e.cache.Gather(ctx, v, needs)
	if err != nil {
		return f, &trouble.Unknown{Err: err}
	}
	if e.Assume != nil {
		e.Assume(&f)
	}
	return f, nil
}

// GPUs are the GPUs that Facts has; Facts and GPUs share one reading of the bus.
func (e *Engine) GPUs(v host.View) ([]facts.PCI, error) {
	e.cache.Memory = e.Memory
	found, err := e.cache.GPUs(v)
	if err != nil {
		return found, &trouble.Unknown{Err: err}
	}
	return found, nil
}

// planToPrint is a plan with the diffs, the drawings and Host.
func (e *Engine) planToPrint(ctx context.Context, m machine) (Plan, error) {
	p, err := e.plan(ctx, m, func(s step) Line { return s.withDrawing(ctx, m.view) })
	for _, c := range p.Changes {
		if m.asked[c.key()] && p.Reboot == "" {
			p.Reboot = c.String()
		}
	}
	p.Host = Host{Root: m.view.Root(), Summary: m.facts.String(), Spec: e.Spec.Digest(), Facts: m.facts}
	return p, err
}

// plan plans all stages, and leaves Host empty; show makes the plan's Change of a step that is not
// converged.
func (e *Engine) plan(ctx context.Context, m machine, show func(step) Line) (Plan, error) {
	p := Plan{Format: PlanFormat, Changes: []Line{}}
	showPlaced := func(s step) Line {
		c := show(s)
		c.Reason = e.placed(c.Reason)
		return c
	}
	var blocking unconverged
	comes := false // a change of an earlier stage may make a silent reader answer
	for _, st := range e.Stages {
		if e.stopped() {
			return Plan{}, ErrStopped
		}

		steps, err := e.planStage(ctx, m, st)
		if err == nil && st.Whole {
			steps, err = e.planWhole(ctx, m, st, steps, blocking)
		}
		if err != nil {
			return Plan{}, err
		}

		comes = settleSilent(steps, comes)
		blocking.note(st.Name, steps)
		if st.Notes != nil {
			p.Notes = append(p.Notes, st.Notes(m.view, e.Spec, m.facts)...)
		}
		p.add(st.Name, steps, showPlaced)
	}
	e.lookAtNamed(ctx, m, &p)
	p.State = p.outcome()
	return p, ctx.Err()
}

// settleSilent gives the steps that wait for a silent reader an unknown state, unless a change that
// comes before them may make it answer: comes says so of earlier stages. It returns the same for the
// stages after these steps.
func settleSilent(steps []step, comes bool) bool {
	for i := range steps {
		s := &steps[i]
		switch {
		case s.Silent != "" && !comes:
			s.Reason = s.withoutEvent()
		case !s.converged() && (s.now() || s.awaited()):
			comes = true
		}
	}
	return comes
}

// add adds a stage's steps to the plan.
func (p *Plan) add(stage string, steps []step, show func(step) Line) {
	counts := StagePlan{Name: stage}
	for _, s := range steps {
		if s.converged() {
			counts.Converged++
			for _, left := range s.Left {
				p.Notes = append(p.Notes, fmt.Sprintf("%s: %s, and stays: it was changed outside gpuadm", s.Change, left))
			}
			continue
		}

		counts.Changes++
		switch {
		case s.Unknown != "":
			p.Unknown++
		case s.Deferred != "":
			p.Deferred++
		}
		p.Changes = append(p.Changes, show(s))
	}

	p.Converged += counts.Converged
	p.Stages = append(p.Stages, counts)
}
