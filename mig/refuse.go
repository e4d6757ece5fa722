// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// cannot refuses, without a search, instances that are impossible by themselves, and more of a
// profile than the GPU holds.
func (m Model) cannot(want Layout, items []item) error {
	count := map[int]int{}
	for _, it := range items {
		p := it.profile
		if err := m.badCompute(it); err != nil {
			return err
		}
		var starts []string
		free := false
		for _, at := range p.Places {
			starts = append(starts, fmt.Sprint(at.Start))
			free = free || at.Start == it.start
		}
		if it.start != Anywhere && m.parts() {
			return &trouble.Error{
				What: fmt.Sprintf("cannot plan %s at %d on %s without its driver: where it can begin is not public", p.Name, it.start, m.Name),
				Try:  []string{"leave out where it begins, or run the same command on the machine, where the driver says it"},
				Err:  errKnown,
			}
		}
		if it.start != Anywhere && !free {
			return &trouble.Error{
				What: fmt.Sprintf("cannot make %s at %d on %s: it cannot begin there", p.Name, it.start, m.Name),
				Try:  []string{"begin at " + trouble.Or(starts)},
			}
		}
		count[p.ID]++
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

// badCompute says what is wrong with the compute instances of one GPU instance.
func (m Model) badCompute(it item) error {
	p := it.profile
	if n := total(it.compute); n > p.Slices {
		return &trouble.Error{
			What: fmt.Sprintf("cannot make compute instances %s in %s: they need %d slices, and it has %d", splits(it.compute), p.Name, n, p.Slices),
			Try:  []string{"ask for fewer or smaller ones"},
		}
	}
	var offers []string
	most := map[int]int{}
	for _, c := range p.Compute {
		offers = append(offers, fmt.Sprintf("%dc", c.Slices))
		most[c.Slices] = c.Max
	}
	for i, c := range it.compute {
		if _, ok := most[c]; !ok {
			t := &trouble.Error{What: fmt.Sprintf("cannot make a compute instance %dc in %s on %s: it has no such profile", c, p.Name, m.Name)}
			if len(offers) > 0 {
				t.Try = []string{"ask for " + trouble.Or(offers)}
			}
			return t
		}
		if n := i + 1 - slices.Index(it.compute, c); n > most[c] {
			return &trouble.Error{
				What: fmt.Sprintf("cannot make compute instances %s in %s: it holds at most %d of %dc", splits(it.compute), p.Name, most[c], c),
				Try:  []string{"ask for fewer of them"},
			}
		}
	}
	return nil
}

// fits says whether all items fit on the GPU together, and where.
func (m Model) fits(items []item) (State, bool) {
	s := search{model: m, items: items, any: true}
	if s.run(); s.best == nil {
		return State{}, false
	}
	return s.fit().Target, true
}

// refuse says why items that are possible one by one do not fit together.
func (m Model) refuse(want Layout, items []item) error {
	why, need, compute := "", 0, 0
	for _, it := range items {
		need += size(it.profile)
		compute += it.profile.Slices
	}
	both := media(items)
	switch a, b := overlap(items); {
	case both != nil:
		why = fmt.Sprintf("%s and %s want the same media engines", both[0].want(), both[1].want())
	case need > m.Memory:
		why = fmt.Sprintf("it needs %d %s, and there are %d", need, m.memory(), m.Memory)
	case compute > m.Compute:
		why = fmt.Sprintf("it needs %d compute slices, and there are %d", compute, m.Compute)
	case a != "":
		why = fmt.Sprintf("%s and %s overlap", a, b)
	default:
		why = "there are enough slices, but not at the places where these can begin"
	}
	var in, out []item
	for _, it := range items {
		if _, ok := m.fits(append(slices.Clone(in), it)); ok {
			in = append(in, it)
		} else {
			out = append(out, it)
		}
	}
	part, _ := m.fits(in)
	left := Layout{Enabled: true}
	for _, it := range out {
		left.Wants = append(left.Wants, it.want())
	}
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot make %s on %s: %s", want, m.Name, why),
		Because: []string{"these fit: " + strings.TrimPrefix(part.String(), string(On)+" ") + "; no room is left for " + left.String()},
	}
	if spare := m.spare(items); len(spare) > 0 {
		t.Try = []string{"leave out " + trouble.Or(spare)}
	}
	return t
}

func (it item) want() Want {
	w := Want{Profile: it.profile.Name, Start: it.start}
	if !slices.Equal(it.compute, []int{it.profile.Slices}) {
		w.Compute = it.compute
	}
	return w
}

// overlap finds two items whose given places overlap.
func overlap(items []item) (a, b string) {
	place := func(it item) uint64 {
		for _, at := range it.profile.Places {
			if at.Start == it.start {
				return mask(at)
			}
		}
		return 0
	}
	for i, x := range items {
		for _, y := range items[:i] {
			if place(x)&place(y) != 0 {
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
		if _, ok := m.fits(slices.Delete(slices.Clone(items), i, i+1)); ok {
			list = append(list, "one "+it.want().String())
		}
	}
	return list
}
