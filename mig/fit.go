// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
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
	start   int   // its first memory slice, or Anywhere
	compute []int // slices of its compute instances, the largest first; never nil
}

// placedPart is one existing GPU instance, with this GPU's profile for it.
type placedPart struct {
	Part
	profile int    // its id; -1 if the GPU has no such profile or place: it cannot stay
	mask    uint64 // the memory slices that it takes
}

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
	s.run()
	if s.best == nil {
		return Fit{}, m.refuseTogether(want, items)
	}

	return s.fit(), nil
}

// mask has a bit for each slice of a place; 0 if no GPU can have the place.
func mask(at host.Span) uint64 {
	if at.Start < 0 || at.Size <= 0 || at.Start+at.Size > 64 {
		return 0
	}
	return (1<<at.Size - 1) << at.Start
}

func (m Model) placedParts(found State) []placedPart {
	var all []placedPart
	var seen uint64
	for _, part := range found.Parts {
		placed := placedPart{Part: part, profile: noProfile}
		for _, p := range m.Profiles {
			i := slices.IndexFunc(p.Places, func(at host.Span) bool {
				return at.Start == part.Start
			})
			if p.Name == part.Profile && i >= 0 && mask(p.Places[i])&seen == 0 {
				placed.profile = p.ID
				placed.mask = mask(p.Places[i])
			}
		}

		seen |= placed.mask
		all = append(all, placed)
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
		largestFirst(it.compute)
		items = append(items, it)
	}

	sorting.By(items, func(a, b item) int {
		return cmp.Or(
			cmp.Compare(b.start, a.start)*fixed(a, b), // items with a given place come first
			cmp.Compare(size(b.profile), size(a.profile)),
			cmp.Compare(a.profile.ID, b.profile.ID),
			slices.Compare(b.compute, a.compute))
	})

	return items, m.refuseOne(want, items)
}

// largestFirst sorts compute instances as layouts and states list them.
func largestFirst(compute []int) {
	sorting.By(compute, func(a, b int) int { return b - a })
}

// fixed is 1 if exactly one of the two has a given place, else 0.
func fixed(a, b item) int {
	if (a.start == Anywhere) != (b.start == Anywhere) {
		return 1
	}
	return 0
}

// like reports whether two items are interchangeable.
func (it item) like(other item) bool {
	sameInstance := it.profile.ID == other.profile.ID && it.start == other.start
	return sameInstance && slices.Equal(it.compute, other.compute)
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
			case a.has("+me.all") && !b.has("-me"),
				b.has("+me.all") && !a.has("-me"),
				a.has("+me") && b.has("+me"):
				return []item{b, a}
			}
		}
	}

	return nil
}

// has reports whether the item's profile has an attribute, written as in its name: 1g.24gb+gfx,me.
func (it item) has(attribute string) bool {
	name := it.profile.Name
	i := strings.LastIndexAny(name, "+-")
	if i < 0 || name[i] != attribute[0] {
		return false
	}

	return slices.Contains(strings.Split(name[i+1:], ","), attribute[1:])
}
