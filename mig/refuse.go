// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// refuseOne refuses, without a search, instances of which one alone is impossible, and more of a
// profile than the GPU holds.
func (m Model) refuseOne(want Layout, items []item) error {
	count := map[int]int{} // by the profile's id
	for _, it := range items {
		if err := m.refuseCompute(it); err != nil {
			return err
		}
		if it.start != Anywhere {
			if err := m.refuseStart(it); err != nil {
				return err
			}
		}

		count[it.profile.ID]++
	}

	for _, p := range m.Profiles {
		if count[p.ID] > p.Max {
			return &trouble.Error{
				What: fmt.Sprintf("cannot make %s on %s: it holds at most %d of %s", want, m.Name, p.Max, p.Name),
				Try:  []string{fmt.Sprintf("ask for %d of %s", p.Max, p.Name)},
			}
		}
	}

	return nil
}

// refuseStart refuses a given place at which the item's profile cannot begin.
func (m Model) refuseStart(it item) error {
	p := it.profile
	if m.inFractions() {
		return &trouble.Error{
			What: fmt.Sprintf("cannot plan %s at %d on %s without its driver: where it can begin is not public", p.Name, it.start, m.Name),
			Try:  []string{"leave out where it begins, or run the same command on the machine, where the driver says it"},
			Err:  errKnown,
		}
	}

	var starts []string
	for _, at := range p.Places {
		if at.Start == it.start {
			return nil
		}
		starts = append(starts, fmt.Sprint(at.Start))
	}

	return &trouble.Error{
		What: fmt.Sprintf("cannot make %s at %d on %s: it cannot begin there", p.Name, it.start, m.Name),
		Try:  []string{"begin at " + trouble.Or(starts)},
	}
}

// refuseCompute refuses compute instances that one GPU instance cannot hold.
func (m Model) refuseCompute(it item) error {
	p := it.profile
	need := total(it.compute)
	if need > p.Slices {
		return &trouble.Error{
			What: fmt.Sprintf(
				"cannot make compute instances %s in %s: they need %d slices, and it has %d",
				computeList(it.compute), p.Name, need, p.Slices,
			),
			Try: []string{"ask for fewer or smaller ones"},
		}
	}

	var offers []string
	most := map[int]int{} // by slices
	for _, c := range p.Compute {
		offers = append(offers, fmt.Sprintf("%dc", c.Slices))
		most[c.Slices] = c.Max
	}

	for i, c := range it.compute {
		if _, ok := most[c]; !ok {
			t := &trouble.Error{
				What: fmt.Sprintf("cannot make a compute instance %dc in %s on %s: it has no such profile", c, p.Name, m.Name),
			}
			if len(offers) > 0 {
				t.Try = []string{"ask for " + trouble.Or(offers)}
			}
			return t
		}

		sameSize := i + 1 - slices.Index(it.compute, c) // so far
		if sameSize > most[c] {
			return &trouble.Error{
				What: fmt.Sprintf(
					"cannot make compute instances %s in %s: it holds at most %d of %dc",
					computeList(it.compute), p.Name, most[c], c,
				),
				Try: []string{"ask for fewer of them"},
			}
		}
	}

	return nil
}

// refuseTogether says why items that are possible one by one do not fit together.
func (m Model) refuseTogether(want Layout, items []item) error {
	placed := State{Mode: On, Next: On}
	var in []item
	left := Layout{Enabled: true}
	for _, it := range items {
		more := append(slices.Clone(in), it)
		if s, ok := m.fits(more); ok {
			in = more
			placed = s
		} else {
			left.Wants = append(left.Wants, it.want())
		}
	}

	fit := strings.TrimPrefix(placed.String(), string(On)+" ")
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot make %s on %s: %s", want, m.Name, m.whyNotTogether(items)),
		Because: []string{"these fit: " + fit + "; no room is left for " + left.String()},
	}
	if spare := m.spare(items); len(spare) > 0 {
		t.Try = []string{"leave out " + trouble.Or(spare)}
	}

	return t
}

func (m Model) whyNotTogether(items []item) string {
	memory := 0
	compute := 0
	for _, it := range items {
		memory += size(it.profile)
		compute += it.profile.Slices
	}

	both := media(items)
	a, b := overlap(items)
	switch {
	case both != nil:
		return fmt.Sprintf("%s and %s want the same media engines", both[0].want(), both[1].want())
	case memory > m.Memory:
		return fmt.Sprintf("it needs %d %s, and there are %d", memory, m.memoryUnit(), m.Memory)
	case compute > m.Compute:
		return fmt.Sprintf("it needs %d compute slices, and there are %d", compute, m.Compute)
	case a != "":
		return fmt.Sprintf("%s and %s overlap", a, b)
	}

	return "there are enough slices, but not at the places where these can begin"
}

// fits reports whether all items fit on the GPU together, and where.
func (m Model) fits(items []item) (State, bool) {
	s := search{model: m, items: items, any: true}
	s.run()
	if s.best == nil {
		return State{}, false
	}
	return s.fit().Target, true
}

// want is the item as a layout asks for it.
func (it item) want() Want {
	w := Want{Profile: it.profile.Name, Start: it.start}
	if !slices.Equal(it.compute, []int{it.profile.Slices}) {
		w.Compute = it.compute
	}
	return w
}

// overlap finds two items whose given places overlap.
func overlap(items []item) (a, b string) {
	given := func(it item) uint64 {
		for _, at := range it.profile.Places {
			if at.Start == it.start {
				return mask(at)
			}
		}
		return 0
	}

	for i, x := range items {
		for _, y := range items[:i] {
			if given(x)&given(y) != 0 {
				return y.want().String(), x.want().String()
			}
		}
	}

	return "", ""
}

// spare lists the items each of which could be left out for the others to fit.
func (m Model) spare(items []item) []string {
	var list []string
	for i, it := range items {
		if i > 0 && it.like(items[i-1]) {
			continue
		}
		others := slices.Delete(slices.Clone(items), i, i+1)
		if _, ok := m.fits(others); ok {
			list = append(list, "one "+it.want().String())
		}
	}

	return list
}
