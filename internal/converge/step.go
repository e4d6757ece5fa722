// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"

	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A step is a want that has been looked at. Undo and roll-back consist of steps too: they want
// things without gpuadm's changes.
type step struct {
	Line
	want  Want
	makes []Change // gpuadm's changes to the thing
	left  []State  // the states in which gpuadm may have left the thing last; "" if it did not change it
	base  State    // the found state without these changes: what To gets

	first State // a Follower's state before the first of the runs that are undone

	unseen   bool  // Look failed: err says why
	err      error // why it cannot be made, or waits
	strict   bool  // of an undo: it is an error if gpuadm's changes cannot be taken out
	unwanted bool  // the spec does not ask for it, and gpuadm takes its changes out
	supplies bool  // it affects a Supplier
	resolved bool  // a Resolver has answered for it
	stuck    bool  // a Resolver had no answer
	optional bool  // an earlier run made it as a dependency: see Chooser
	idle     bool  // a Follower whose state is deferred, and that no pending change affects

	late bool // of an undo: it comes after a Follower that would take its state away
	// mayBeGone: an undo that was cut short has changed the driver, which does not answer now.
	// Where it does not answer either once all else is undone, the thing is gone with it.
	mayBeGone bool
	beside    []Change // of an undo: the changes of Perishable things that it makes beside this one
}

func (s step) converged() bool { return s.Before == s.After && s.now() }

// unanswered says that the step waits for the answer of a Resolver. To cannot give that
// answer either.
func (s step) unanswered() bool { return s.stuck || s.resolved && s.Deferred != "" }

// goneWithDriver says that the driver, which the undo has changed, took the thing with it. A driver
// that only a new process can ask may still have the thing.
func (s step) goneWithDriver() bool {
	return s.mayBeGone && s.withoutDriver() && s.When != host.InNewProcess
}

// withoutDriver says that the step waits for a driver that does not answer.
func (s step) withoutDriver() bool { return errors.As(s.err, new(*host.NoDriver)) }

// blocked says that this step prevents an undo: it cannot be made, or its state is not known. A
// daemon that does not run prevents none: it will read its files when it starts.
func (s step) blocked() bool {
	if s.mayBeGone {
		return false
	}
	waits := s.Unknown != "" || s.Deferred != "" && s.When != host.InNewProcess
	return s.refused() || s.strict && waits && !is[Follower](s)
}

// is says whether a step's thing has what an optional interface asks for.
func is[T Thing](s step) bool {
	_, has := s.want.Thing.(T)
	return has
}

// moveBehind moves the steps for which last is true behind the others.
func moveBehind(steps []step, last func(step) bool) {
	rank := func(s step) int {
		if last(s) {
			return 1
		}
		return 0
	}

	sorting.By(steps, func(a, b step) int { return rank(a) - rank(b) })
}

// groups yields the steps in their order: neighbours of one Batch as one group, others alone.
func groups(steps []step) iter.Seq[[]step] {
	return func(yield func([]step) bool) {
		for len(steps) > 0 {
			n := 1
			if is[Batch](steps[0]) {
				for n < len(steps) && steps[n].Kind == steps[0].Kind {
					n++
				}
			}

			if !yield(steps[:n]) {
				return
			}
			steps = steps[n:]
		}
	}
}

// changes returns the changes of some steps.
func changes(steps []step) (list []Change) {
	for _, s := range steps {
		list = append(list, s.Change)
	}
	return list
}

// linesOf returns the lines of some steps.
func linesOf(steps []step) (list []Line) {
	for _, s := range steps {
		list = append(list, s.Line)
	}
	return list
}

// withDiff returns the change with its diff.
func (s step) withDiff(v host.View) Line {
	c := s.Line
	stored, ok := s.want.Thing.(Stored)
	if !ok || !c.now() {
		return c
	}

	before, err1 := stored.Bytes(v, c.Before)
	after, err2 := stored.Bytes(v, c.After)
	if err1 == nil && err2 == nil {
		c.Diff = diff.Texts(c.Name, before, after)
	}
	return c
}

// withDrawing returns the change with its diff and its drawing.
func (s step) withDrawing(ctx context.Context, v host.View) Line {
	c := s.withDiff(v)
	drawn, ok := s.want.Thing.(Drawn)
	if ok && c.now() {
		c.Drawing = drawn.Draw(ctx, v, c.Before, c.After)
	}
	return c
}

// look fills in the state found and the desired state.
func (s *step) look(ctx context.Context, v host.View) {
	s.Before = ""
	s.After = ""
	s.Left = nil

	found, err := s.want.Look(ctx, v)
	s.unseen = err != nil
	if !s.unseen {
		s.Before = found
		s.After, err = s.desired(v, found)
		s.askLeaver(ctx, v)
	}

	s.err = err
	if s.unseen {
		s.Reason = unseenBecause(err)
	} else {
		s.Reason = reasonOf(err)
	}

	if s.Deferred != "" || s.Unknown != "" {
		s.Before = ""
		s.After = ""
	}
}

// askLeaver has an undo leave what it may not revert.
func (s *step) askLeaver(ctx context.Context, v host.View) {
	leaver, ok := s.want.Thing.(Leaver)
	if !ok || !s.strict || s.Before == s.After {
		return
	}
	if why := leaver.Leaves(ctx, v, s.Before, s.After); why != "" {
		s.Left = append(s.Left, why)
		s.After = s.Before
	}
}

// askDisruptor asks what the change interrupts, and what an operator has to allow.
func (s *step) askDisruptor(ctx context.Context, v host.View) {
	s.askGuarded()
	disruptor, ok := s.want.Thing.(Disruptor)
	if !ok || !s.now() {
		return
	}

	s.Breaks = nil
	s.Clients = nil
	if s.Before == s.After {
		return
	}
	var err error
	if d, ok := disruptor.(DisruptorBeside); ok {
		s.Breaks, s.Clients, err = d.BreaksBeside(ctx, v, s.Before, s.After, s.beside)
	} else {
		s.Breaks, s.Clients, err = disruptor.Breaks(ctx, v, s.Before, s.After)
	}

	if err != nil {
		s.Reason = withoutAnswer(err)
	}
}

// askGuarded asks a Guarded thing what an operator has to allow.
func (s *step) askGuarded() {
	guarded, ok := s.want.Thing.(Guarded)
	if !ok {
		return
	}

	s.Breaks = nil
	s.Clients = nil
	for _, left := range s.left {
		what, who := guarded.Guards(s.Before, left, s.After)
		if what == "" || s.Before == s.After {
			s.Breaks = nil
			s.Clients = nil
			return
		}

		s.Breaks = []string{what}
		s.Clients = map[string][]string{what: {who}}
	}
}

// desired returns the desired state. It takes gpuadm's changes out of the found state first, so
// that a changed spec ends as on a new machine.
func (s *step) desired(v host.View, found State) (State, error) {
	s.base = found
	switch {
	case len(s.makes) == 0, s.want.AsFound:
		return s.want.To(found)
	case s.strict:
		return s.reverted(v, found)
	}

	return s.rebased(v, found)
}

// reverted is the desired state of an undo.
func (s *step) reverted(v host.View, found State) (State, error) {
	base, left, err := takeOut(v, s.want.Thing, found, s.makes)
	if err != nil {
		return "", err
	}
	if err := load(v, s.want.Thing, base); err != nil {
		return "", &trouble.Error{
			What: fmt.Sprintf("cannot undo %s: the bytes it had before are lost: %v", s, err),
			Try:  []string{"restore " + path.Join(v.Root(), Home) + " from a backup"},
			Err:  err,
		}
	}

	s.base = base
	s.Left = left
	return s.want.To(base)
}

// rebased is the desired state of an apply. Where another process has changed the thing, and the
// found state still meets the unchanged spec, the found state stays.
func (s *step) rebased(v host.View, found State) (State, error) {
	if !knows(s.makes, found) && s.stillMeets(v, found) {
		return found, nil
	}

	base, left, err := takeOut(v, s.want.Thing, found, s.makes)
	if err != nil {
		s.Left = []string{err.Error()}
		base = found
	}
	if load(v, s.want.Thing, base) != nil {
		return s.want.To(found) // the blobs are missing: only undo is lost
	}

	s.base = base
	after, err := s.want.To(base)
	if err != nil || len(left) == 0 {
		return after, err
	}
	_, still, err := takeOut(v, s.want.Thing, after, s.makes)
	if err == nil { // what the spec overwrites is not left
		s.Left = still
	}
	return after, nil
}

// stillMeets says whether the spec has not changed since gpuadm's last change, and a found state
// meets it.
func (s *step) stillMeets(v host.View, found State) bool {
	last := s.makes[len(s.makes)-1].After
	clean, _, err := takeOut(v, s.want.Thing, last, s.makes)
	if err != nil || load(v, s.want.Thing, clean) != nil {
		return false
	}

	leadsTo := func(from, want State) bool {
		to, err := s.want.To(from)
		return err == nil && to == want
	}

	return leadsTo(clean, last) && leadsTo(found, found)
}
