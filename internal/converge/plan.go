// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
)

// A Plan says what an apply would do. It is what `plan -o json` prints, and the text is rendered
// from it.
type Plan struct {
	Format    int         `json:"format"`
	Host      Host        `json:"host"`
	Stages    []StagePlan `json:"stages"`
	Changes   []Change    `json:"changes"`
	Converged int         `json:"converged"` // wants that are converged
	Deferred  int         `json:"deferred"`  // changes that wait for an event
	Notes     []string    `json:"notes,omitempty"`
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
	Changes   int    `json:"changes"` // also those that are deferred or cannot be made
}

// PlanFormat is the version of the plan's JSON.
const PlanFormat = 1

// Cannot returns the changes that cannot be made.
func (p Plan) Cannot() []Change {
	return slices.DeleteFunc(slices.Clone(p.Changes), func(c Change) bool { return c.Cannot == "" })
}

// Now counts the pending changes: those that an apply would make at once, and those that it cannot
// make.
func (p Plan) Now() int { return len(p.Changes) - p.Deferred }

// Facts gathers what the stages need to know of the machine. It caches what a run cannot change.
func (e *Engine) Facts(ctx context.Context, v host.View) (facts.Facts, error) {
	var needs facts.Needs
	all := e.Stages
	if slices.ContainsFunc(all, func(st Stage) bool { return st.Whole }) {
		all = append(e.Before[:len(e.Before):len(e.Before)], all...)
	}
	for _, st := range all {
		if st.Needs != nil {
			needs = needs.And(st.Needs(e.Spec))
		}
	}
	f, err := e.cache.Gather(ctx, v, needs)
	if err == nil && e.Assume != nil {
		e.Assume(&f)
	}
	return f, err
}

// GPUs are the GPUs that Facts has; Facts and GPUs share one reading of the bus.
func (e *Engine) GPUs(v host.View) ([]facts.PCI, error) { return e.cache.GPUs(v) }

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
	return e.shown(ctx, v, j, f)
}

// shown is a plan with the diffs and Host, to print.
func (e *Engine) shown(ctx context.Context, v host.View, j Journal, f facts.Facts) (Plan, error) {
	p, err := e.plan(ctx, v, j, f, step.show)
	p.Host = Host{Root: v.Root(), Summary: f.String(), Spec: e.Spec.Digest(), Facts: f}
	return p, err
}

// plan plans all stages, and leaves Host empty; show makes the plan's Change of a step that is not
// converged.
func (e *Engine) plan(ctx context.Context, v host.View, j Journal, f facts.Facts, show func(step, host.View) Change) (Plan, error) {
	p := Plan{Format: PlanFormat, Changes: []Change{}}
	mine := present(j.Runs())
	var asked unconverged
	for _, st := range e.Stages {
		if e.stopped() {
			return Plan{}, ErrStopped
		}
		steps, err := e.planStage(ctx, v, st, f, mine)
		if err == nil && st.Whole {
			steps, err = e.planWhole(ctx, v, st, f, mine, steps, asked)
		}
		if err != nil {
			return Plan{}, err
		}
		asked.note(st.Name, steps)
		if st.Notes != nil {
			p.Notes = append(p.Notes, st.Notes(v, e.Spec, f)...)
		}
		s := StagePlan{Name: st.Name}
		for _, step := range steps {
			switch {
			case step.converged():
				s.Converged++
				for _, left := range step.Left {
					p.Notes = append(p.Notes, fmt.Sprintf("%s: %s, and stays: it was changed outside gpuadm", step.Change, left))
				}
				continue
			case step.Deferred != "":
				p.Deferred++
			}
			s.Changes++
			p.Changes = append(p.Changes, show(step, v))
		}
		p.Converged += s.Converged
		p.Stages = append(p.Stages, s)
	}
	return p, ctx.Err()
}

// stepsOf returns a step for each want of a stage, and for each thing that gpuadm made and that its
// section no longer asks for. A section that is gone from the spec is released: what was made for
// it stays.
func (e *Engine) stepsOf(st Stage, f facts.Facts, mine []ours) []step {
	wants, err := st.Wants(e.Spec, f)
	if err != nil {
		return []step{standIn(st.Name, err)}
	}
	if slices.ContainsFunc(wants, func(w Want) bool { return w.Releases }) {
		mine = nil
	}
	asked := make(map[key]bool, len(wants))
	for _, w := range wants {
		asked[w.Ref().key()] = true
	}
	var unwanted []step
	for _, o := range slices.Backward(mine) {
		if o.Stage != st.Name || asked[o.is] || !e.Spec.Has(o.section()) || o.Keeps != "" || o.makes[0].Lost != "" || o.Dependency {
			continue
		}
		if o.restored() && !o.unsure() {
			continue // it was rolled back, and its Followers were made current then
		}
		s, err := e.takingOut(o)
		if err != nil {
			continue // a kind of another gpuadm version: only its undo is lost
		}
		s.Why = "no longer asked for"
		unwanted = append(unwanted, s)
		for _, t := range e.followers(o.Change) {
			if !slices.ContainsFunc(wants, func(w Want) bool { return w.Ref().covers(t.Ref()) }) {
				wants = append(wants, Following(t, ""))
			}
		}
	}
	wanted := make([]step, 0, len(wants))
	for _, w := range wants {
		of := w.Ref()
		makes := makesOf(mine, of.key())
		wanted = append(wanted, step{want: w, makes: makes, left: leftOf(makes), Change: Change{
			Stage: st.Name, Section: w.Section, Ref: of, Why: w.Why,
			Breaks: w.Breaks, Clients: w.Clients, Keeps: w.Keeps, Leaves: w.Leaves, Brings: w.Brings,
		}})
	}
	steps := together(append(unwanted, wanted...))
	behind(steps, is[Follower])
	verifiers := e.followersOfVerifiers(st, f)
	for i := range steps {
		steps[i].noteFollowers(steps, verifiers)
	}
	return steps
}

// takingOut is the step that takes out all that gpuadm made of a thing.
func (e *Engine) takingOut(o ours) (step, error) {
	t, err := e.ThingOf(o.Ref)
	c := o.Change
	c.Why, c.Reason, c.Unsure, c.Lost = "", Reason{}, false, o.makes[0].Lost
	same := func(found State) (State, error) { return found, nil }
	return step{Change: c, makes: o.makes, left: leftOf(o.makes), want: Want{Thing: t, To: same}, unwanted: true}, err
}

// Following is the want that a Follower is current.
func Following(t Follower, why string) Want {
	return Want{Thing: t, Why: why, To: func(found State) (State, error) { return t.Current(found), nil }}
}

// followers builds, from a journalled change, the Followers that its undo affects.
func (e *Engine) followers(c Change) (list []Follower) {
	for _, ref := range c.Affects {
		t, _ := e.ThingOf(ref) // nil where this gpuadm does not know the kind
		if follower, ok := t.(Follower); ok {
			list = append(list, follower)
		}
	}
	return list
}

// together puts the steps of each Batch beside each other, at the place of the last: one
// transaction removes packages that the spec no longer asks for and installs those that replace
// them, and removes no dependency while another package needs it.
func together(steps []step) (list []step) {
	for i, s := range steps {
		mate := func(o step) bool { return o.Kind == s.Kind && o.Stage == s.Stage }
		if !is[Batch](s) {
			list = append(list, s)
		} else if !slices.ContainsFunc(steps[i+1:], mate) { // s is the last of its Batch
			mates := slices.DeleteFunc(slices.Clone(steps[:i+1]), func(o step) bool { return !mate(o) })
			if is[Resolver](s) { // the wanted ones come first: a Resolver goes by them
				behind(mates, func(s step) bool { return s.unwanted })
			}
			list = append(list, mates...)
		}
	}
	return list
}

// followersOfVerifiers returns the Followers of the stages that verify this one. A stage that
// cannot say yet what it wants has none.
func (e *Engine) followersOfVerifiers(st Stage, f facts.Facts) (list []step) {
	for _, verifier := range e.Stages {
		if verifier.Verifies != st.Name {
			continue
		}
		wants, err := verifier.Wants(e.Spec, f)
		if err != nil {
			continue
		}
		for _, w := range wants {
			if s := (step{want: w, Change: Change{Ref: w.Ref()}}); is[Follower](s) {
				list = append(list, s)
			}
		}
	}
	return list
}

// noteFollowers notes which Followers of the stage, and of the stages that verify it, the step's
// change affects.
func (s *step) noteFollowers(steps, verifiers []step) {
	if s.Follows = is[Follower](*s); s.Follows {
		return
	}
	s.Affects = nil
	for _, all := range [][]step{steps, verifiers} {
		for i := range all {
			if t, ok := all[i].want.Thing.(Follower); ok && t.Affected("", s.Change) != "" {
				s.Affects = append(s.Affects, t.Ref())
			}
		}
	}
}

func (c Change) section() string { return cmp.Or(c.Section, c.Stage) }

// planStage returns the steps of one stage, looked at.
func (e *Engine) planStage(ctx context.Context, v host.View, st Stage, f facts.Facts, mine []ours) ([]step, error) {
	return e.lookAll(ctx, v, e.stepsOf(st, f, mine), mine)
}
