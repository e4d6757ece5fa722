// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// planStage returns the steps of one stage, looked at.
func (e *Engine) planStage(ctx context.Context, m machine, st Stage) ([]step, error) {
	return e.lookAll(ctx, m.view, e.stepsOf(m, st), m.owned)
}

// stepsOf returns a step for each want of a stage, and for each thing that gpuadm made and that its
// section no longer asks for. A section that is gone from the spec is released: what was made for
// it stays.
func (e *Engine) stepsOf(m machine, st Stage) []step {
	wants, err := st.Wants(e.Spec, m.facts)
	if err != nil {
		return []step{standIn(st.Name, err)}
	}
	if slices.ContainsFunc(wants, func(w Want) bool { return w.Releases }) {
		m.owned = nil
	}

	unwanted := e.unwanted(st.Name, wants, m.owned)
	for _, s := range unwanted {
		wants = e.addFollowers(wants, s.Change)
	}
	wanted := make([]step, 0, len(wants))
	for _, w := range wants {
		wanted = append(wanted, wantedStep(st.Name, w, m.owned))
	}

	for _, w := range e.chosen(st.Name, wanted, m.owned) {
		s := wantedStep(st.Name, w, m.owned)
		s.optional = true
		wanted = append(wanted, s)
	}

	steps := joinBatches(append(unwanted, wanted...))
	moveBehind(steps, is[Follower])
	elsewhere := e.followersElsewhere(m, st)
	for i := range steps {
		steps[i].noteFollowers(steps, elsewhere)
	}
	return steps
}

// settleSilent gives the steps that wait for a silent reader an unknown state, unless a change that
// comes before them may make it answer: comes says so of earlier stages. It returns the same for
// the stages after these steps.
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

// chosen returns the wants of what earlier runs made as dependencies: because they could be had,
// and the spec still asks for them, or because others needed them. What a released section brought
// stays with that section's things until undo.
func (e *Engine) chosen(stage string, wanted []step, all []owned) (more []Want) {
	i := slices.IndexFunc(wanted, is[Chooser])
	if i < 0 {
		return nil
	}

	chooser := wanted[i].want.Thing.(Chooser)
	for _, o := range all {
		released := !e.Spec.Has(o.section())
		if released || !o.Dependency || o.Stage != stage || o.Kind != chooser.Ref().Kind {
			continue
		}
		if w, ok := chooser.Chosen(o.makes[0], o.Change); ok {
			w.Section = o.Section
			more = append(more, w)
		}
	}

	return more
}

// wantedStep is the step that brings a thing to its desired state.
func wantedStep(stage string, w Want, all []owned) step {
	makes := makesOf(all, w.Ref().key())
	return step{
		Line:  Line{Change: wantedChange(stage, w)},
		want:  w,
		makes: makes,
		left:  leftOf(makes),
	}
}

// wantedChange is the change that a want may need. Its states are not known yet.
func wantedChange(stage string, w Want) Change {
	return Change{
		Stage:    stage,
		Section:  w.Section,
		Ref:      w.Ref(),
		Why:      w.Why,
		Breaks:   w.Breaks,
		Clients:  w.Clients,
		Keeps:    w.Keeps,
		UndoOnly: w.UndoOnly,
		Brings:   w.Brings,
	}
}

// unwanted returns a step for each thing of a stage that gpuadm made and that no want asks for, the
// last touched thing first.
func (e *Engine) unwanted(stage string, wants []Want, all []owned) (steps []step) {
	asked := make(map[key]bool, len(wants))
	for _, w := range wants {
		asked[w.Ref().key()] = true
	}

	for _, o := range slices.Backward(all) {
		if o.Stage != stage || asked[o.key] || !e.revertsUnwanted(o) {
			continue
		}
		s, err := e.takingOut(o)
		if err != nil {
			continue // a kind of another gpuadm version: only its undo is lost
		}
		s.Why = "no longer asked for"
		steps = append(steps, s)
	}

	return steps
}

// revertsUnwanted says whether an apply reverts gpuadm's changes to a thing that no want asks for.
// If the changes are rolled back already, the thing's Followers were made current then.
func (e *Engine) revertsUnwanted(o owned) bool {
	stays := o.Keeps != "" || o.UndoOnly != "" || o.makes[0].Lost != "" || o.Dependency
	return !stays && e.Spec.Has(o.section()) && o.present()
}

// takingOut is the step that takes out all that gpuadm made of a thing.
func (e *Engine) takingOut(o owned) (step, error) {
	thing, err := e.ThingOf(o.Ref)
	asFound := func(found State) (State, error) { return found, nil }

	c := o.Change
	c.Why = ""
	c.Unsure = false
	c.Lost = o.makes[0].Lost
	return step{
		Line:     Line{Change: c},
		want:     Want{Thing: thing, To: asFound},
		makes:    o.sinceFound(),
		left:     leftOf(o.makes),
		unwanted: true,
	}, err
}

// reverting returns the steps that revert gpuadm's changes, the last touched thing first, then the
// Followers that these affect.
func (e *Engine) reverting(all []owned) (steps []step) {
	var followers []step
	for _, o := range slices.Backward(all) {
		s, err := e.takingOut(o)
		s.strict = true
		s.resolved = true
		if err != nil {
			s.Cannot = err.Error()
			s.err = err
		}

		for _, t := range e.followers(o.Change) {
			_, supplies := t.(Supplier)
			s.supplies = s.supplies || supplies
			followers = addFollower(followers, o.Stage, t)
		}

		steps = append(steps, s)
	}

	return append(suppliersFirst(joinBatches(steps)), followers...)
}

// addFollower adds the step that makes a Follower current: in the place of the same Follower with
// fewer files, if there is one, else at the end.
func addFollower(steps []step, stage string, t Follower) []step {
	ref := t.Ref()
	if slices.ContainsFunc(steps, func(s step) bool { return s.Ref.covers(ref) }) {
		return steps
	}

	covered := func(s step) bool { return ref.covers(s.Ref) }
	place := slices.IndexFunc(steps, covered)
	steps = slices.DeleteFunc(steps, covered)
	if place < 0 {
		place = len(steps)
	}
	return slices.Insert(steps, place, step{
		Line:   Line{Change: Change{Stage: stage, Ref: ref, Follows: true}},
		want:   Following(t, ""),
		strict: true,
	})
}

// suppliersFirst moves the steps that affect a Supplier before those of a Resolver, which asks it.
func suppliersFirst(steps []step) []step {
	first := slices.IndexFunc(steps, is[Resolver])
	if first >= 0 {
		moveBehind(steps[first:], func(s step) bool { return !s.supplies || is[Resolver](s) })
	}
	return steps
}

// joinBatches puts the steps of each Batch together, at the place of the last: one transaction
// removes packages that the spec no longer asks for and installs those that replace them, and
// removes no dependency while another package needs it.
func joinBatches(steps []step) (list []step) {
	for i, s := range steps {
		if !is[Batch](s) {
			list = append(list, s)
			continue
		}
		inBatch := func(o step) bool { return o.Kind == s.Kind && o.Stage == s.Stage }
		if slices.ContainsFunc(steps[i+1:], inBatch) {
			continue // the last of the Batch adds it
		}

		batch := slices.DeleteFunc(slices.Clone(steps[:i+1]), func(o step) bool {
			return !inBatch(o)
		})
		if is[Resolver](s) { // a Resolver goes by the wanted ones, which come first
			moveBehind(batch, func(s step) bool { return s.unwanted })
		}
		list = append(list, batch...)
	}
	return list
}

// unknown replaces the wants of a stage that does not know them yet, or cannot be made as a whole.
type unknown struct {
	stage string
	err   error
}

func (u unknown) Ref() Ref { return Ref{Kind: "check", Name: u.stage} }

func (u unknown) Look(context.Context, host.View) (State, error) { return "", u.err }

func (u unknown) Make(context.Context, host.Host, State) error { return u.err }

// standIn is the only step of a stage that does not know its wants. The engine looks again at a
// stand-in that waits.
func standIn(stage string, err error) (s step) {
	thing := unknown{stage, err}
	s.Change = Change{Stage: stage, Ref: thing.Ref()}
	s.Reason = reasonOf(err)
	if trouble.Passes(err) {
		s.want.Thing = thing
	}
	return s
}
