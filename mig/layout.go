// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Anywhere is the start of a Want without a given place.
const Anywhere = -1

// Want is one desired GPU instance.
type Want struct {
	Profile string // 1g.10gb+me, or 1g for whatever this GPU calls it
	Start   int    // its first memory slice, or Anywhere
	Compute []int  // slices of its compute instances, largest first; nil: one instance takes all slices
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

	if len(order) == 0 {
		return "on and empty"
	}

	for i, s := range order {
		if count[s] > 1 {
			order[i] = fmt.Sprintf("%d × %s", count[s], s)
		}
	}

	return strings.Join(order, ", ")
}

// String is the want as a State writes an instance, with " at " before its start: "3g.40gb(1c,1c)
// at 4".
func (w Want) String() string {
	s := w.Profile
	if w.Compute != nil {
		s += "(" + computeList(w.Compute) + ")"
	}
	if w.Start != Anywhere {
		s += " at " + strconv.Itoa(w.Start)
	}

	return s
}

// maxCount is more than any GPU holds: a larger count is a typing error.
const maxCount = 64

// layoutByCount is a layout by the number of each profile, as in mig-parted's files and node.toml.
// Entries with a part of the compute slices ("1c.3g.40gb") share as few GPU instances as possible.
func layoutByCount(counts map[string]int) (Layout, error) {
	l := Layout{Enabled: true}
	shared := map[string][]int{} // compute instances, by the name of their GPU instance
	slots := map[string]int{}    // compute slices of that GPU instance
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		n, err := parseName(key)
		if err != nil {
			return Layout{}, err
		}
		count := counts[key]
		if count < 0 || count > maxCount {
			return Layout{}, fmt.Errorf("%d of %s: no GPU has so many", count, key)
		}

		whole := n.whole()
		for range count {
			if n.compute == 0 {
				l.Wants = append(l.Wants, Want{Profile: whole, Start: Anywhere})
				continue
			}
			shared[whole] = append(shared[whole], n.compute)
			slots[whole] = n.slices
		}
	}

	for _, whole := range slices.Sorted(maps.Keys(shared)) {
		for _, compute := range pack(shared[whole], slots[whole]) {
			l.Wants = append(l.Wants, Want{
				Profile: whole,
				Start:   Anywhere,
				Compute: compute,
			})
		}
	}

	l.sort()

	return l, nil
}

// pack puts compute instances into as few GPU instances with this many slots as possible: the
// largest first, into the first instance with room. With at most seven slots that is optimal.
func pack(compute []int, slots int) [][]int {
	largestFirst(compute)
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

// layoutByPlace is a layout by places, as in node.toml. Entries with a part of the compute slices
// and the same start share one GPU instance.
func layoutByPlace(list []spec.Placement) (Layout, error) {
	l := Layout{Enabled: true}
	for _, p := range list {
		n, err := parseName(p.Profile)
		if err != nil {
			return Layout{}, err
		}
		w := Want{Profile: n.whole(), Start: p.Start}
		if n.compute == 0 {
			l.Wants = append(l.Wants, w)
			continue
		}

		i := slices.IndexFunc(l.Wants, func(o Want) bool {
			return o.Profile == w.Profile && o.Start == w.Start && o.Compute != nil
		})
		if i < 0 {
			w.Compute = []int{n.compute}
			l.Wants = append(l.Wants, w)
			continue
		}

		l.Wants[i].Compute = append(l.Wants[i].Compute, n.compute)
		largestFirst(l.Wants[i].Compute)
	}

	l.sort()

	return l, nil
}

// sort orders the wants by start, then the largest first.
func (l Layout) sort() {
	sorting.By(l.Wants, func(a, b Want) int {
		x, _ := parseName(a.Profile)
		y, _ := parseName(b.Profile)
		return cmp.Or(
			cmp.Compare(a.Start, b.Start),
			cmp.Compare(y.slices, x.slices),
			cmp.Compare(y.gigabytes, x.gigabytes),
			cmp.Compare(x.attributes, y.attributes),
			cmp.Compare(len(a.Compute), len(b.Compute)),
			slices.Compare(b.Compute, a.Compute))
	})
}
