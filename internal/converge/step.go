// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A step is a want that has been looked at. Undo and roll-back consist of steps too: they want
// things without gpuadm's changes.
type step struct {
	Change
	want     Want
	makes    []Change // gpuadm's changes to the thing
	base     State    // the found state without these changes: what To gets
	resolved bool     // a Resolver has answered for it
	stuck    bool     // a Resolver had no answer
	strict   bool     // of an undo: it is an error if gpuadm's changes cannot be taken out
	idle     bool     // a Follower whose state is deferred, and that no pending change affects
	err      error    // why it cannot be made, or waits
	unwanted bool     // the spec does not ask for it, and gpuadm takes its changes out
	left     []State  // the states in which gpuadm may have left the thing last; "" if it did not change it
	unseen   bool     // Look failed: err says why
	supplies bool     // it affects a Supplier
}

func (s step) converged() bool { return s.Before == s.After && s.now() }

// blocked says that this step prevents an undo: it cannot be made, or its state is not known. A
// daemon that does not run prevents none: it will read its files when it starts.
func (s step) blocked() bool {
	return s.Cannot != "" || s.strict && s.Deferred != "" && !is[Follower](s) && s.When != host.InNewProcess
}

// is says whether a step's thing has what an optional interface asks for.
func is[T Thing](s step) bool {
	_, has := s.want.Thing.(T)
	return has
}

// behind moves the steps for which some is true behind the others.
func behind(steps []step, some func(step) bool) {
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(steps, func(a, b step) int { return rank[some(a)] - rank[some(b)] })
}

// sideBySide is how many looks may run at once. Few of them wait for a command or another machine;
// where none does, the first goroutine makes all looks, on a stack that has grown already.
const sideBySide = 8

// lookAll looks at all steps, several at once, has Resolvers add the dependencies, and foresees how
// the pending changes affect each Follower.
func (e *Engine) lookAll(ctx context.Context, v host.View, steps []step, mine []ours) ([]step, error) {
	var wg sync.WaitGroup
	var next atomic.Int64
	look := func() {
		for i := next.Add(1) - 1; i < int64(len(steps)); i = next.Add(1) - 1 {
			if steps[i].Cannot == "" {
				e.lookAt(ctx, v, &steps[i])
			}
		}
	}
	for range min(len(steps), sideBySide) - 1 {
		wg.Go(look)
	}
	look()
	wg.Wait()
	steps, err := e.resolve(ctx, v, steps, mine)
	if err != nil {
		return nil, err
	}
	var pending, validated []Change
	for i := range steps {
		s := &steps[i]
		if t, ok := s.want.Thing.(Follower); ok {
			current := t.Current(s.Before)
			s.foresee(t, pending)
			s.breaks(ctx, v)
			if !slices.ContainsFunc(validated, func(c Change) bool { return t.Affected(current, c) != current }) {
				e.validate(ctx, v, s)
			}
		} else if !s.converged() && s.Cannot == "" {
			pending = append(pending, s.Change)
			if is[Validator](*s) {
				validated = append(validated, s.Change)
			}
		}
	}
	return slices.DeleteFunc(steps, func(s step) bool { return s.idle }), nil
}

// lookAt reads the state of one step's thing, asks what the change interrupts, and has a Validator
// validate it. lookAll has Followers validated later, when it knows what affects them.
func (e *Engine) lookAt(ctx context.Context, v host.View, s *step) {
	s.look(ctx, v)
	s.breaks(ctx, v)
	if !is[Follower](*s) {
		e.validate(ctx, v, s)
	}
}

// validate has a Validator validate a pending change, once a run.
func (e *Engine) validate(ctx context.Context, v host.View, s *step) {
	p, ok := s.want.Thing.(Validator)
	if !ok || s.strict || s.converged() || !s.now() {
		return
	}
	type change struct {
		key
		base, after State
	}
	answer, _ := e.validated.LoadOrStore(change{s.key(), s.base, s.After}, sync.OnceValue(func() error {
		return p.Validate(ctx, v, s.base, s.After)
	}))
	if err := answer.(func() error)(); err != nil {
		s.Reason = cannot(err)
	}
}

// breaks asks a Disruptor what the change interrupts.
func (s *step) breaks(ctx context.Context, v host.View) {
	s.guard()
	b, ok := s.want.Thing.(Disruptor)
	if !ok || !s.now() {
		return
	}
	s.Breaks, s.Clients = nil, nil
	if s.Before != s.After {
		var err error
		if s.Breaks, s.Clients, err = b.Breaks(ctx, v, s.Before, s.After); err != nil {
			s.Reason = cannot(err)
		}
	}
}

// guard asks a Guarded thing what an operator has to allow.
func (s *step) guard() {
	g, ok := s.want.Thing.(Guarded)
	if !ok {
		return
	}
	s.Breaks, s.Clients = nil, nil
	for _, left := range s.left {
		what, who := g.Guards(s.Before, left, s.After)
		if what == "" || s.Before == s.After {
			s.Breaks, s.Clients = nil, nil
			return
		}
		s.Breaks, s.Clients = []string{what}, map[string][]string{what: {who}}
	}
}

// look fills in the state found and the state desired.
func (s *step) look(ctx context.Context, v host.View) {
	s.Before, s.After, s.Left = "", "", nil
	found, err := s.want.Look(ctx, v)
	if s.unseen = err != nil; !s.unseen {
		s.Before = found
		s.After, err = s.to(v, found)
	}
	s.err, s.Reason = err, reasonOf(err)
	switch {
	case s.Deferred != "":
		s.Before, s.After = "", ""
	case s.unseen:
		s.Cannot = fmt.Sprintf("cannot read the state of %s: %s", s, s.Cannot)
	}
}

// to returns the desired state. It takes gpuadm's changes out of the found state first, so that a
// changed spec ends as on a new machine. Where another process has changed the thing, and the found
// state still meets the unchanged spec, the found state stays.
func (s *step) to(v host.View, found State) (State, error) {
	s.base = found
	if len(s.makes) == 0 || s.want.AsFound {
		return s.want.To(found)
	}
	base, left, err := takeOut(v, s.want.Thing, found, s.makes)
	if err != nil {
		if s.strict {
			return "", err
		}
		s.Left = []string{err.Error()} // To gets the state found
		base = found
	}
	leadsTo := func(from, want State) bool {
		to, err := s.want.To(from)
		return err == nil && to == want
	}
	last := s.makes[len(s.makes)-1].After
	if !s.strict && !knows(s.makes, found) {
		if without, _, err := takeOut(v, s.want.Thing, last, s.makes); err == nil &&
			load(v, s.want.Thing, without) == nil && leadsTo(without, last) && leadsTo(found, found) {
			s.Left = nil
			return found, nil
		}
	}
	if err := load(v, s.want.Thing, base); err != nil {
		if s.strict {
			return "", &trouble.Error{
				What: fmt.Sprintf("cannot undo %s: the bytes it had before are lost: %v", s, err), Err: err,
				Try: []string{"restore " + Home + " from a backup"},
			}
		}
		return s.want.To(found) // the blobs are missing: only undo is lost
	}
	s.base = base
	after, err := s.want.To(base)
	if s.strict {
		s.Left = left
	} else if err == nil && len(left) > 0 { // what the spec overwrites is not left
		if _, still, err := takeOut(v, s.want.Thing, after, s.makes); err == nil {
			s.Left = still
		}
	}
	return after, err
}

// foresee computes a Follower's state after the pending changes. If the state cannot be known yet
// and no change affects the Follower, the step is idle: a daemon that does not run will read its
// files when it starts.
func (s *step) foresee(t Follower, pending []Change) {
	if s.Cannot != "" {
		return
	}
	st := s.Before
	for _, c := range pending {
		st = t.Affected(st, c)
	}
	if st == s.Before {
		s.idle = s.Deferred != ""
		return
	}
	s.Before, s.After = st, t.Current(st)
	if s.want.To == nil {
		return
	}
	if _, err := s.want.To(st); err != nil {
		s.Reason = cannot(err)
	}
}

// show returns the change with its diff.
func (s step) show(v host.View) Change {
	c := s.Change
	st, ok := s.want.Thing.(Stored)
	if !ok || !c.now() {
		return c
	}
	before, err1 := st.Bytes(v, c.Before)
	after, err2 := st.Bytes(v, c.After)
	if err1 == nil && err2 == nil {
		c.Diff = diff.Texts(c.Name, before, after)
	}
	return c
}
