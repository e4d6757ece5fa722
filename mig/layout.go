// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// Anywhere is the start of a Want that may lie wherever it fits.
const Anywhere = -1

// Want is one GPU instance that is asked for.
type Want struct {
	Profile string // 1g.10gb+me, or 1g for whatever this GPU calls it
	Start   int    // its first memory slice, or Anywhere
	Compute []int  // slices of its compute instances, largest first; nil: one that takes them all
}

// Layout is the desired partitions of one GPU.
type Layout struct {
	Enabled bool // MIG mode; when false, there are no wants
	Wants   []Want
}

// String is the layout in one line: "off", "on and empty", "3g.40gb at 4, 2 × 1g.10gb".
func (l Layout) String() string {
	if !l.Enabled {
		return "off"
	}
	var order []string
	count := map[string]int{}
	for _, w := range l.Wants {
		s := w.String()
		if count[s] == 0 {
			order = append(order, s)
		}
		count[s]++
	}
	for i, s := range order {
		if count[s] > 1 {
			order[i] = fmt.Sprintf("%d × %s", count[s], s)
		}
	}
	if len(order) == 0 {
		return "on and empty"
	}
	return strings.Join(order, ", ")
}

// String is the want as a State writes an instance, with " at " before its start: "3g.40gb(1c,1c) at 4".
func (w Want) String() string {
	s := w.Profile
	if w.Compute != nil {
		s += "(" + splits(w.Compute) + ")"
	}
	if w.Start != Anywhere {
		s += " at " + strconv.Itoa(w.Start)
	}
	return s
}

func splits(compute []int) string {
	list := make([]string, len(compute))
	for i, c := range compute {
		list[i] = strconv.Itoa(c) + "c"
	}
	return strings.Join(list, ",")
}

// most is more than any GPU holds: a larger count is a typing error, and would only cost memory.
const most = 64

// counted is a layout of so many of each profile, as mig-parted and node.toml count them: entries with a part of the
// compute slices ("1c.3g.40gb") share GPU instances, as few as hold them.
func counted(counts map[string]int) (Layout, error) {
	l := Layout{Enabled: true}
	parts := map[string][]int{}
	wholes := map[string]name{}
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		n, err := parseName(key)
		if err != nil {
			return Layout{}, err
		}
		if counts[key] < 0 || counts[key] > most {
			return Layout{}, fmt.Errorf("%d of %s: no GPU has so many", counts[key], key)
		}
		for range counts[key] {
			if n.compute == 0 {
				l.Wants = append(l.Wants, Want{Profile: n.whole(), Start: Anywhere})
				continue
			}
			parts[n.whole()] = append(parts[n.whole()], n.compute)
			wholes[n.whole()] = n
		}
	}
	for _, whole := range slices.Sorted(maps.Keys(parts)) {
		for _, compute := range pack(parts[whole], wholes[whole].slices) {
			l.Wants = append(l.Wants, Want{Profile: whole, Start: Anywhere, Compute: compute})
		}
	}
	l.sort()
	return l, nil
}

// pack puts compute instances into as few GPU instances of so many slices as hold them: largest first, into the first
// with room. With at most seven slices that is the fewest.
func pack(compute []int, slots int) [][]int {
	slices.SortFunc(compute, func(a, b int) int { return b - a })
	var bins [][]int
next:
	for _, c := range compute {
		for i := range bins {
			if total(bins[i])+c <= slots {
				bins[i] = append(bins[i], c)
				continue next
			}
		}
		bins = append(bins, []int{c})
	}
	return bins
}

func total(list []int) int {
	sum := 0
	for _, n := range list {
		sum += n
	}
	return sum
}

// placed is a layout of instances with their places, as node.toml has them. Parts of the compute slices at one start
// are in one GPU instance.
func placed(list []spec.Placement) (Layout, error) {
	l := Layout{Enabled: true}
	for _, p := range list {
		n, err := parseName(p.Profile)
		if err != nil {
			return Layout{}, err
		}
		if n.compute == 0 {
			l.Wants = append(l.Wants, Want{Profile: n.whole(), Start: p.Start})
			continue
		}
		same := func(w Want) bool { return w.Profile == n.whole() && w.Start == p.Start && w.Compute != nil }
		i := slices.IndexFunc(l.Wants, same)
		if i < 0 {
			l.Wants = append(l.Wants, Want{Profile: n.whole(), Start: p.Start, Compute: []int{n.compute}})
			continue
		}
		l.Wants[i].Compute = append(l.Wants[i].Compute, n.compute)
		slices.SortFunc(l.Wants[i].Compute, func(a, b int) int { return b - a })
	}
	l.sort()
	return l, nil
}

// sort puts the wants into one order: by start, then the largest first.
func (l Layout) sort() {
	slices.SortStableFunc(l.Wants, func(a, b Want) int {
		x, _ := parseName(a.Profile)
		y, _ := parseName(b.Profile)
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(y.slices, x.slices), cmp.Compare(y.gigabytes, x.gigabytes),
			cmp.Compare(x.attributes, y.attributes), cmp.Compare(len(a.Compute), len(b.Compute)), slices.Compare(b.Compute, a.Compute))
	})
}
