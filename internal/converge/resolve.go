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
func (e *Engine) resolve(ctx context.Context, v host.View, steps []step, mine []ours) ([]step, error) {
	for i := 0; i < len(steps); i++ {
		r, ok := steps[i].want.Thing.(Resolver)
		if !ok || steps[i].converged() || steps[i].resolved {
			continue
		}
		same := func(s step) bool { return s.Kind == r.Ref().Kind }
		if slices.ContainsFunc(steps, func(s step) bool { return same(s) && s.Cannot != "" }) {
			continue // the plan will be refused anyway
		}
		var pending []Change
		for j := range steps {
			if same(steps[j]) && !steps[j].converged() && steps[j].Deferred == "" {
				steps[j].resolved = true
				pending = append(pending, steps[j].Change)
			}
		}
		if len(pending) == 0 {
			continue
		}
		found, err := r.Resolve(ctx, v, pending)
		if err != nil {
			steps = unresolved(steps, pending, err)
			continue
		}
		if steps, err = e.dependencies(steps, pending[0], found, mine); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// unresolved marks the pending changes that a Resolver had no answer for. If they wait, all are
// deferred. Else the first gets the reason, and the others, whose reason is the same, are dropped.
func unresolved(steps []step, pending []Change, err error) []step {
	waits := errors.As(err, new(host.Later))
	var out []step
	for _, s := range steps {
		asked := slices.ContainsFunc(pending, func(c Change) bool { return c.key() == s.key() })
		switch {
		case asked && waits:
			s.Before, s.After, s.Reason = "", "", reasonOf(err)
		case asked && s.key() == pending[0].key():
			s.Reason, s.stuck = cannot(err), true
		case asked:
			continue
		}
		out = append(out, s)
	}
	return out
}

// dependencies writes what a Resolver found into the steps, and adds the dependencies behind the
// last step of their kind.
func (e *Engine) dependencies(steps []step, like Change, found []Change, mine []ours) ([]step, error) {
	last := 0
	for i, s := range steps {
		if s.Kind == like.Kind {
			last = i
		}
	}
	var extra []step
	for _, c := range found {
		i := slices.IndexFunc(steps, func(s step) bool { return s.key() == c.key() })
		if i < 0 {
			t, err := e.ThingOf(c.Ref)
			if err != nil {
				return nil, err
			}
			c.Stage, c.Section, c.Dependency = like.Stage, like.Section, true
			s := step{Change: c, want: Want{Thing: t, To: unlessChanged(c)}, resolved: true, left: leftOf(makesOf(mine, c.key()))}
			s.guard()
			extra = append(extra, s)
			continue
		}
		s := &steps[i]
		if to, err := s.accepts(c); s.converged() && (err != nil || to != c.After) {
			s.Reason = cannot(fmt.Errorf("cannot keep %s: the other changes need %q in place of %q", s, c.After, c.Before))
			continue
		}
		s.Before, s.After, s.Why, s.Lost, s.Brings, s.Dependency, s.makes = c.Before, c.After, c.Why, c.Lost, c.Brings, c.Dependency, nil
		s.want.To = unlessChanged(c)
		s.guard()
	}
	return slices.Insert(steps, last+1, extra...), nil
}

// accepts returns what a converged step's To makes of c.After, the state in which other changes
// would leave the thing. The result is c.After if the spec allows that, or no longer asks for the
// thing.
func (s step) accepts(c Change) (State, error) {
	if s.want.To == nil || !s.converged() {
		return c.After, nil
	}
	return s.want.To(c.After)
}

// unlessChanged is the To of a resolved change: it fails where another process has changed the
// thing since Resolve.
func unlessChanged(c Change) func(State) (State, error) {
	return func(found State) (State, error) {
		if found != c.Before && found != c.After {
			return "", fmt.Errorf("cannot make %s: it was %q in the plan and is %q now; run the same command again", c, c.Before, found)
		}
		return c.After, nil
	}
}
