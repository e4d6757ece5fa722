// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// cost compares placements of a layout. Its numbers, the most important first: disturbed instances
// in use; destroyed instances; destroyed compute instances, and created ones, in instances that
// stay. The number of created instances follows from the destroyed ones.
type cost [4]int

func (c cost) plus(d cost) cost {
	for i := range c {
		c[i] += d[i]
	}
	return c
}

// search is one exhaustive search, by branch and bound.
type search struct {
	model Model
	items []item
	found []placedPart
	any   bool // stop at the first solution

	at   []host.Span // the places of the items before the current one
	kept uint64      // the found instances that stay, by index

	best     []host.Span // nil: no placement of all items is known yet
	bestCost cost
	bestRoom int
	bestKept uint64
}

// run searches. It skips the search if compute slices or media engines do not suffice; on known
// GPUs the memory slices run out before the compute slices.
func (s *search) run() {
	compute := 0
	for _, it := range s.items {
		compute += it.profile.Slices
	}

	if compute <= s.model.Compute && media(s.items) == nil {
		s.place(0, 0, cost{})
	}
}

// place places the items from i on. used are the occupied slices, and changes is the cost of the
// kept instances so far.
func (s *search) place(i int, used uint64, changes cost) {
	if s.best != nil {
		least := changes.plus(s.removed(used))
		if s.any || slices.Compare(least[:], s.bestCost[:]) > 0 {
			return
		}
	}

	if i == len(s.items) {
		s.compare(used, changes.plus(s.removed(^uint64(0))))
		return
	}

	for _, at := range s.items[i].profile.Places {
		here := mask(at)
		if here == 0 || used&here != 0 || !s.isDue(i, at) {
			continue
		}

		kept := s.kept
		now := changes.plus(s.keep(i, here))
		s.at = append(s.at, at)
		s.place(i+1, used|here, now)
		s.at = s.at[:i]
		s.kept = kept
	}
}

// isDue reports whether the search tries an item at a place. It tries only the start that the
// layout names, if it names one, and only places after that of an equal item: equal items in
// another order are the same placement.
func (s *search) isDue(i int, at host.Span) bool {
	it := s.items[i]
	if it.start != Anywhere && at.Start != it.start {
		return false
	}
	isLikeBefore := i > 0 && it.like(s.items[i-1])
	return !isLikeBefore || at.Start > s.at[i-1].Start
}

// keep keeps the found instances that an item in these slices can take over, and returns the cost
// of their changes.
func (s *search) keep(i int, here uint64) (changes cost) {
	it := s.items[i]
	for k, f := range s.found {
		if f.profile == it.profile.ID && f.mask == here {
			s.kept |= 1 << k
			changes = changes.plus(changed(f, it))
		}
	}
	return changes
}

// removed is the cost of the found instances in these slices that are destroyed.
func (s *search) removed(used uint64) cost {
	var c cost
	for k, f := range s.found {
		if s.kept&(1<<k) != 0 || f.mask&used == 0 && f.profile != noProfile {
			continue
		}
		c[1]++
		if f.Busy {
			c[0]++
		}
	}

	return c
}

// changed is the cost of giving a found instance the compute instances of an item.
func changed(f placedPart, it item) cost {
	destroy, create := recompute(f.Compute, it.compute)
	c := cost{0, 0, len(destroy), len(create)}
	if f.Busy && len(destroy) > 0 {
		c[0] = 1
	}

	return c
}

// recompute lists the compute instances to destroy, by index, and to make, by slices. The driver
// does not say where the found instances are, and an instance that stays might block a new instance
// of two slices or more: where such an instance is to be made, recompute destroys all others.
func recompute(found, want []int) (destroy, create []int) {
	left := slices.Clone(want)
	for i, c := range found {
		if j := slices.Index(left, c); j >= 0 {
			left = slices.Delete(left, j, j+1)
		} else {
			destroy = append(destroy, i)
		}
	}

	if len(left) == 0 || left[0] == 1 || len(found) == 0 {
		return destroy, left
	}

	destroy = destroy[:0]
	for i := range found {
		destroy = append(destroy, i)
	}

	return destroy, want
}

// compare compares one placement of all items with the best so far.
func (s *search) compare(used uint64, c cost) {
	room := s.room(used)
	order := cmp.Or(slices.Compare(c[:], s.bestCost[:]), s.bestRoom-room)
	if order == 0 {
		order = slices.CompareFunc(s.at, s.best, func(a, b host.Span) int {
			return a.Start - b.Start
		})
	}

	if s.best == nil || order < 0 {
		s.best = append([]host.Span{}, s.at...) // never nil
		s.bestCost = c
		s.bestRoom = room
		s.bestKept = s.kept
	}
}

// room counts the places where another instance would still fit.
func (s *search) room(used uint64) int {
	n := 0
	for _, p := range s.model.Profiles {
		for _, at := range p.Places {
			if mask(at)&used == 0 {
				n++
			}
		}
	}

	return n
}

// fit is the best placement.
func (s *search) fit() Fit {
	keeps := bits.OnesCount64(s.bestKept)
	f := Fit{
		Target:   State{Mode: On, Next: On},
		Keeps:    keeps,
		Destroys: len(s.found) - keeps,
		Creates:  len(s.items) - keeps,
	}

	for i, it := range s.items {
		at := s.best[i]
		part := Part{
			Profile: it.profile.Name,
			Start:   at.Start,
			Compute: slices.Clone(it.compute),
		}
		for k, old := range s.found {
			if s.bestKept&(1<<k) == 0 || old.mask != mask(at) {
				continue
			}
			part.Busy = old.Busy
			if changed(old, it)[0] > 0 {
				f.Disturbs = append(f.Disturbs, old.Part)
			}
		}

		f.Target.Parts = append(f.Target.Parts, part)
	}

	for k, old := range s.found {
		if s.bestKept&(1<<k) == 0 && old.Busy {
			f.Disturbs = append(f.Disturbs, old.Part)
		}
	}

	f.Target.sort()
	sorting.By(f.Disturbs, func(a, b Part) int { return a.Start - b.Start })

	return f
}
