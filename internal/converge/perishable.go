// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// perishable returns the states in which steps have found Perishable things.
func perishable(steps []step) (list []Found) {
	for _, s := range steps {
		if is[Perishable](s) && !s.unseen && s.Before != "" {
			list = append(list, Found{s.Ref, s.Before})
		}
	}
	return list
}

// sinceFound returns gpuadm's changes to the thing, the first one from the state that its run has
// found: an earlier change of that run may have taken that state away.
func (o owned) sinceFound() []Change {
	i := slices.IndexFunc(o.first.Found, func(f Found) bool { return f.key() == o.key })
	if i < 0 || o.first.Found[i].State == o.makes[0].Before {
		return o.makes
	}

	makes := slices.Clone(o.makes)
	makes[0].Before = o.first.Found[i].State
	return makes
}

// perishablesLast moves what the make of a Follower would take away behind that Follower. Followers
// that Perishable things affect come last: they depend on both.
func perishablesLast(steps []step) []step {
	var affected []Ref
	for i := range steps {
		s := &steps[i]
		s.late = s.mayBeGone || takenAway(steps, s.want.Thing, s.After)
		if is[Perishable](*s) {
			affected = append(affected, s.Affects...)
		}
	}

	isAffected := func(s step) bool {
		return slices.ContainsFunc(affected, func(ref Ref) bool { return ref.covers(s.Ref) })
	}

	moveBehind(steps, func(s step) bool { return s.late || isAffected(s) })
	moveBehind(steps, isAffected)
	return steps
}

// takenAway says whether the make of a Follower among the steps takes a state of the thing away.
func takenAway(steps []step, t Thing, state State) bool {
	p, ok := t.(Perishable)
	if !ok {
		return false
	}
	return slices.ContainsFunc(steps, func(s step) bool {
		return is[Follower](s) && !p.Outlasts(state, s.Ref)
	})
}

// waitsForBoot says that an undo has to restore something once a boot has loaded the earlier
// driver: it stays open, and that boot continues it.
func (r *run) waitsForBoot() bool {
	return slices.ContainsFunc(r.result.Deferred, isAfterReboot)
}

// restorePerishable makes the states again that the run has found, and that a roll-back of some
// steps takes away. It journals nothing: each thing is as before the run then.
func (r *run) restorePerishable(ctx context.Context, steps []step) (errs []error) {
	for _, found := range r.found {
		thing, err := r.engine.ThingOf(found.Ref)
		if err != nil || !takenAway(steps, thing, found.State) {
			continue
		}

		now, err := thing.Look(ctx, r.host)
		if err == nil && now != found.State {
			err = thing.Make(ctx, r.host, found.State)
		}
		if err != nil {
			errs = append(errs, host.Join(err))
		}
	}
	return errs
}
