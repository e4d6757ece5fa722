// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// resolve asks the Resolver of each kind what its pending changes bring, and adds these
// dependencies.
func (e *Engine) resolve(ctx context.Context, v host.View, steps []step, all []owned) ([]step, error) {
	for i := 0; i < len(steps); i++ {
		resolver, ok := steps[i].want.Thing.(Resolver)
		if !ok || steps[i].converged() || steps[i].resolved {
			continue
		}
		pending := pendingOf(steps, resolver.Ref().Kind)
		if len(pending) == 0 {
			continue
		}

		found, err := resolver.Resolve(ctx, v, pending)
		if err != nil {
			steps = unresolved(steps, pending, err)
			continue
		}
		steps, err = e.addDependencies(steps, pending[0], found, all)
		if err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// pendingOf returns the pending changes of a kind, and marks their steps as resolved; nil if one of
// the changes cannot be made, since the plan will be refused anyway.
func pendingOf(steps []step, kind string) (pending []Change) {
	stuck := func(s step) bool {
		return s.Kind == kind && (s.Cannot != "" || s.Unknown != "")
	}
	if slices.ContainsFunc(steps, stuck) {
		return nil
	}

	for i := range steps {
		s := &steps[i]
		if s.Kind == kind && !s.converged() && s.Deferred == "" {
			s.resolved = true
			pending = append(pending, s.Change)
		}
	}

	return pending
}

// unresolved marks the pending changes for which a Resolver had no answer. If the Resolver waits,
// all of them are deferred, except what stays as it is until then. Otherwise the first change gets
// the reason, and the others are dropped: their reason is the same.
func unresolved(steps []step, pending []Change, err error) (rest []step) {
	waits := errors.As(err, new(host.Later))
	for _, s := range steps {
		asked := slices.ContainsFunc(pending, func(c Change) bool {
			return c.key() == s.key()
		})
		switch {
		case asked && waits && s.want.Stays:
			continue
		case asked && waits:
			s.Before = ""
			s.After = ""
			s.Reason = reasonOf(err)
		case asked && s.key() == pending[0].key():
			s.Reason = cannot(err)
			s.stuck = true
		case asked:
			continue
		}

		rest = append(rest, s)
	}

	return rest
}

// addDependencies writes what a Resolver found into the steps, and adds the dependencies behind the
// last step of their kind. They belong to the stage and section of like, one of the changes that
// bring them.
func (e *Engine) addDependencies(
	steps []step, like Change, found []Change, all []owned,
) ([]step, error) {
	var extra []step
	for _, c := range found {
		i := slices.IndexFunc(steps, func(s step) bool { return s.key() == c.key() })
		if i >= 0 {
			steps[i].resolveTo(c)
			continue
		}

		thing, err := e.ThingOf(c.Ref)
		if err != nil {
			return nil, err
		}
		c.Stage = like.Stage
		c.Section = like.Section
		c.Dependency = true
		s := step{
			Line:     Line{Change: c},
			want:     Want{Thing: thing, To: unlessChanged(c)},
			left:     leftOf(makesOf(all, c.key())),
			resolved: true,
		}
		s.askGuarded()
		extra = append(extra, s)
	}

	last := 0
	for i, s := range steps {
		if s.Kind == like.Kind {
			last = i
		}
	}

	return slices.Insert(steps, last+1, extra...), nil
}

// resolveTo replaces the step's change by what a Resolver found.
func (s *step) resolveTo(c Change) {
	if s.converged() && !s.accepts(c) {
		s.Reason = cannot(fmt.Errorf("cannot keep %s: the other changes need %q in place of %q", s, c.After, c.Before))
		return
	}

	s.Before = c.Before
	s.After = c.After
	s.Why = c.Why
	s.Lost = c.Lost
	s.Brings = c.Brings
	s.Dependency = c.Dependency
	s.makes = nil
	s.want.To = unlessChanged(c)
	s.askGuarded()
}

// accepts says whether the spec allows c.After, the state in which other changes would leave a
// converged step's thing, or no longer asks for the thing.
func (s step) accepts(c Change) bool {
	if s.want.To == nil {
		return true
	}

	to, err := s.want.To(c.After)
	return err == nil && to == c.After
}

// unlessChanged is the To of a resolved change: it fails where another process has changed the
// thing since Resolve.
func unlessChanged(c Change) func(State) (State, error) {
	return func(found State) (State, error) {
		if found == c.Before || found == c.After {
			return c.After, nil
		}
		return "", fmt.Errorf("cannot make %s: it was %q in the plan and is %q now; run the same command again",
			c, c.Before, found)
	}
}
