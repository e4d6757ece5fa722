// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Fit is how a layout is placed on a GPU, and what that changes.
type Fit struct {
	Target   State  // the GPU's desired state
	Keeps    int    // instances that stay
	Destroys int    // instances that are destroyed
	Creates  int    // instances that are made
	Disturbs []Part // instances in use that are destroyed, or that get other compute instances
}

// item is one desired GPU instance, with this GPU's profile for it.
type item struct {
	profile host.Profile
	start   int
	compute []int // never nil
}

// placedPart is one existing GPU instance, with this GPU's profile for it.
type placedPart struct {
	Part
	profile int // its id; -1 if the GPU has no such profile or place: it cannot stay
	mask    uint64
}

// cost compares placements of a layout. Its numbers, the most important first: disturbed instances
// in use; destroyed instances; destroyed compute instances, and created ones, in instances that
// stay. The number of created instances follows from the destroyed ones.
type cost [4]int

// Fit places the layout on a GPU in the state found, with the least disturbance: it spares
// instances in use if possible, and then destroys as few instances as possible, by exhaustive
// search. Among equal solutions it takes the one that leaves the most room, then the first by
// places, so that the same input gives the same places. Errors are a *trouble.Error that says why
// the layout is impossible.
func (m Model) Fit(found State, want Layout) (Fit, error) {
	if found.Mode == Unknown {
		return Fit{}, errors.New("cannot plan the partitions: the GPU's state is not known")
	}
	if !want.Enabled {
		f := Fit{Target: State{Mode: Off, Next: Off}, Destroys: len(found.Parts)}
		for _, p := range found.Parts {
			if p.Busy {
				f.Disturbs = append(f.Disturbs, p)
			}
		}
		return f, nil
	}
	items, err := m.items(want)
	if err != nil {
		return Fit{}, err
	}
	s := search{model: m, items: items, found: m.placedParts(found)}
	if s.run(); s.best == nil {
		return Fit{}, m.refuse(want, items)
	}
	return s.fit(), nil
}

func mask(at host.Span) uint64 {
	if at.Start < 0 || at.Size <= 0 || at.Start+at.Size > 64 {
		return 0
	}
	return (1<<at.Size - 1) << at.Start
}

func (m Model) placedParts(found State) []placedPart {
	var all []placedPart
	var seen uint64
	for _, p := range found.Parts {
		s := placedPart{Part: p, profile: noProfile}
		for _, q := range m.Profiles {
			i := slices.IndexFunc(q.Places, func(at host.Span) bool { return at.Start == p.Start })
			if q.Name == p.Profile && i >= 0 && mask(q.Places[i])&seen == 0 {
				s.profile, s.mask = q.ID, mask(q.Places[i])
			}
		}
		seen |= s.mask
		all = append(all, s)
	}
	return all
}

// items resolves the wants and refuses those that no GPU of this model can have.
func (m Model) items(want Layout) ([]item, error) {
	if m.Memory > 64 {
		return nil, fmt.Errorf("cannot plan the partitions of %s: %d memory slices are more than any GPU known has", m.Name, m.Memory)
	}
	var items []item
	for _, w := range want.Wants {
		n, err := parseName(w.Profile)
		if err != nil {
			return nil, fmt.Errorf("cannot plan the partitions of %s: %w", m.Name, err)
		}
		p, err := m.profile(n)
		if err != nil {
			return nil, err
		}
		it := item{profile: p, start: w.Start, compute: slices.Clone(w.Compute)}
		if w.Compute == nil {
			it.compute = []int{p.Slices}
		}
		slices.SortFunc(it.compute, func(a, b int) int { return b - a })
		items = append(items, it)
	}
	slices.SortStableFunc(items, func(a, b item) int {
		return cmp.Or(
			cmp.Compare(b.start, a.start)*fixed(a, b), // items with a given place come first
			cmp.Compare(size(b.profile), size(a.profile)),
			cmp.Compare(a.profile.ID, b.profile.ID),
			slices.Compare(b.compute, a.compute))
	})
	return items, m.cannot(want, items)
}

// fixed is 1 if exactly one of the two has a given place, else 0.
func fixed(a, b item) int {
	if (a.start == Anywhere) != (b.start == Anywhere) {
		return 1
	}
	return 0
}

func (it item) like(other item) bool {
	return it.profile.ID == other.profile.ID && it.start == other.start && slices.Equal(it.compute, other.compute)
}

// search is one exhaustive search, by branch and bound.
type search struct {
	model Model
	items []item
	found []placedPart
	any   bool // stop at the first solution

	at   []host.Span // the places of the items before the current one
	kept uint64      // by index of found

	best     []host.Span
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

// media finds two items that want the same media engines; nil if none do. A GPU has one JPEG engine
// and one optical flow accelerator, and +me gives both to one instance of any size: an A30 offers
// 1g.6gb+me and 2g.12gb+me, each once. +me.all gives an instance all engines, and leaves none for
// instances whose name does not say -me.
// Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
func media(items []item) []item {
	for i, a := range items {
		for _, b := range items[:i] {
			switch {
			case a.has("+me.all") && !b.has("-me"), b.has("+me.all") && !a.has("-me"), a.has("+me") && b.has("+me"):
				return []item{b, a}
			}
		}
	}
	return nil
}

// has says whether the item's profile has an attribute, written as in its name: 1g.24gb+gfx,me.
func (it item) has(attribute string) bool {
	i := strings.LastIndexAny(it.profile.Name, "+-")
	return i >= 0 && it.profile.Name[i] == attribute[0] && slices.Contains(strings.Split(it.profile.Name[i+1:], ","), attribute[1:])
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
		s.leaf(used, changes.plus(s.removed(^uint64(0))))
		return
	}
	it := s.items[i]
	for _, at := range it.profile.Places {
		if it.start != Anywhere && at.Start != it.start {
			continue
		}
		if i > 0 && it.like(s.items[i-1]) && at.Start <= s.at[i-1].Start {
			continue // equal items in another order are the same placement
		}
		here := mask(at)
		if here == 0 || used&here != 0 {
			continue
		}
		now, kept := changes, s.kept
		for k, f := range s.found {
			if f.profile == it.profile.ID && f.mask == here {
				s.kept |= 1 << k
				now = now.plus(changed(f, it))
			}
		}
		s.at = append(s.at, at)
		s.place(i+1, used|here, now)
		s.at, s.kept = s.at[:i], kept
	}
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

func (c cost) plus(d cost) cost {
	for i := range c {
		c[i] += d[i]
	}
	return c
}

func changed(f placedPart, it item) cost {
	destroy, create := recompute(f.Compute, it.compute)
	c := cost{0, 0, len(destroy), len(create)}
	if f.Busy && len(destroy) > 0 {
		c[0] = 1
	}
	return c
}

// recompute lists the compute instances to destroy, by index, and to make, by slices. The places of
// the found ones are unknown, and one that stays might block a new one of two slices or more: if
// such a one is to be made, recompute destroys all.
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

// leaf compares one placement of all items with the best so far.
func (s *search) leaf(used uint64, c cost) {
	room := s.room(used)
	order := cmp.Or(slices.Compare(c[:], s.bestCost[:]), s.bestRoom-room)
	if order == 0 {
		order = slices.CompareFunc(s.at, s.best, func(a, b host.Span) int { return a.Start - b.Start })
	}
	if s.best == nil || order < 0 {
		s.best = append([]host.Span{}, s.at...) // never nil
		s.bestCost, s.bestRoom, s.bestKept = c, room, s.kept
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

func (s *search) fit() Fit {
	f := Fit{Target: State{Mode: On, Next: On}, Keeps: bits.OnesCount64(s.bestKept)}
	f.Destroys, f.Creates = len(s.found)-f.Keeps, len(s.items)-f.Keeps
	for i, it := range s.items {
		p := Part{Profile: it.profile.Name, Start: s.best[i].Start, Compute: slices.Clone(it.compute)}
		for k, old := range s.found {
			if s.bestKept&(1<<k) == 0 || old.mask != mask(s.best[i]) {
				continue
			}
			p.Busy = old.Busy
			if changed(old, it)[0] > 0 {
				f.Disturbs = append(f.Disturbs, old.Part)
			}
		}
		f.Target.Parts = append(f.Target.Parts, p)
	}
	for k, old := range s.found {
		if s.bestKept&(1<<k) == 0 && old.Busy {
			f.Disturbs = append(f.Disturbs, old.Part)
		}
	}
	f.Target.sort()
	slices.SortFunc(f.Disturbs, func(a, b Part) int { return a.Start - b.Start })
	return f
}
