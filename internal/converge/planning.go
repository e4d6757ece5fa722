// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
)

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
	return e.planToPrint(ctx, machine{
		view:  v,
		facts: f,
		owned: present(j.Runs()),
		asked: j.asksForReboot(f.BootID),
	})
}

// planToPrint is a plan with the diffs, the drawings and Host.
func (e *Engine) planToPrint(ctx context.Context, m machine) (Plan, error) {
	p, err := e.plan(ctx, m, func(s step) Line { return s.withDrawing(ctx, m.view) })
	for _, c := range p.Changes {
		if m.asked[c.key()] && p.Reboot == "" {
			p.Reboot = c.String()
		}
	}

	p.Host = Host{
		Root:    m.view.Root(),
		Summary: m.facts.String(),
		Spec:    e.Spec.Digest(),
		Facts:   m.facts,
	}
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
		p.found = append(p.found, perishable(steps)...)
		if st.Notes != nil {
			p.Notes = append(p.Notes, st.Notes(m.view, e.Spec, m.facts)...)
		}
		p.add(st.Name, steps, showPlaced)
	}

	e.lookAtNamed(ctx, m, &p)
	p.State = p.outcome()
	return p, ctx.Err()
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
