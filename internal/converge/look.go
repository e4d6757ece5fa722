// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// looksAtOnce is how many looks may run at the same time. Few of them wait for a command or another
// machine; where none does, the first goroutine makes all looks, on a stack that has grown already.
const looksAtOnce = 8

// lookAll looks at all steps, several at once, has Resolvers add the dependencies, and foresees how
// the pending changes affect each Follower.
func (e *Engine) lookAll(ctx context.Context, v host.View, steps []step, all []owned) ([]step, error) {
	e.lookAtOnce(ctx, v, steps)
	steps = slices.DeleteFunc(steps, func(s step) bool { return s.optional && s.converged() })
	steps, err := e.resolve(ctx, v, steps, all)
	if err != nil {
		return nil, err
	}

	var ahead foreseen
	for i := range steps {
		s := &steps[i]
		t, follows := s.want.Thing.(Follower)
		switch {
		case follows:
			e.lookAhead(ctx, v, s, t, ahead)
		case !s.converged() && s.Cannot == "" && s.Unknown == "":
			ahead.add(s)
		}

		if s.strict && is[Perishable](*s) && !s.unseen {
			ahead.perishable = append(ahead.perishable, s.Change)
		}
	}

	return slices.DeleteFunc(steps, func(s step) bool { return s.idle }), nil
}

// foreseen are the pending changes that come before the Followers.
type foreseen struct {
	pending    []Change
	validated  []Change // those of a Validator
	perishable []Change // of an undo: those of Perishable things, pending or not
}

func (f *foreseen) add(s *step) {
	f.pending = append(f.pending, s.Change)
	if is[Validator](*s) {
		f.validated = append(f.validated, s.Change)
	}
}

// lookAtOnce looks at all steps, several at the same time.
func (e *Engine) lookAtOnce(ctx context.Context, v host.View, steps []step) {
	var wg sync.WaitGroup
	var next atomic.Int64
	look := func() {
		for i := next.Add(1) - 1; i < int64(len(steps)); i = next.Add(1) - 1 {
			if !steps[i].refused() {
				e.lookAndAsk(ctx, v, &steps[i])
			}
		}
	}

	for range min(len(steps), looksAtOnce) - 1 {
		wg.Go(look)
	}
	look()
	wg.Wait()
}

// lookAhead foresees a Follower's state, and asks about it. A Follower that a validated change
// affects is not validated itself: the daemon would read the files as they are now.
func (e *Engine) lookAhead(
	ctx context.Context, v host.View, s *step, t Follower, ahead foreseen,
) {
	current := t.Current(s.Before)
	s.foresee(t, ahead.pending)
	s.beside = ahead.perishable
	s.askDisruptor(ctx, v)

	affects := func(c Change) bool { return t.Affected(current, c) != current }
	if !slices.ContainsFunc(ahead.validated, affects) {
		e.askValidator(ctx, v, s)
	}
}

// lookAndAsk reads the state of one step's thing, asks what the change interrupts, and has a
// Validator validate it. lookAhead has Followers validated later, when it is known what affects
// them.
func (e *Engine) lookAndAsk(ctx context.Context, v host.View, s *step) {
	s.look(ctx, v)
	s.askDisruptor(ctx, v)
	if !is[Follower](*s) {
		e.askValidator(ctx, v, s)
	}
}

// askValidator has a Validator validate a pending change, once a run.
func (e *Engine) askValidator(ctx context.Context, v host.View, s *step) {
	validator, ok := s.want.Thing.(Validator)
	pending := !s.converged() && s.now()
	if !ok || s.strict || !pending {
		return
	}

	type change struct {
		key
		base, after State
	}
	once := sync.OnceValue(func() error { return validator.Validate(ctx, v, s.base, s.After) })
	answer, _ := e.validated.LoadOrStore(change{s.key(), s.base, s.After}, once)
	err := answer.(func() error)()
	switch {
	case trouble.IsUnknown(err):
		s.Reason = unknownBecause(err)
		s.Passes = false // without a verdict an apply touches nothing
	case err != nil:
		s.Reason = cannot(err)
	}
}
