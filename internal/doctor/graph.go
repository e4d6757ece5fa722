// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"slices"
	"strings"
)

// fault is a finding and its check.
type fault struct {
	check Check
	Finding
}

// code is what an Edge calls the fault: its check's code, with the part that the finding is about.
func (f fault) code() string { return strings.TrimSuffix(f.check.Code+"/"+f.Part, "/") }

// explains says whether a fault brings another one with it, by one edge.
func (f fault) explains(o fault, edges []Edge) bool {
	return slices.ContainsFunc(edges, func(e Edge) bool {
		return e.By == f.code() && e.Explains == o.code() && (e.Of == anyObject || f.Object == o.Object)
	})
}

// causes picks the faults that no other one explains, and puts below each of them all that it explains, directly or not. A fault with two
// roots is below both. Root causes of one check with one fix are one Cause; those that are no fault
// of the machine are notes.
func causes(faults []fault, edges []Edge) (list []Cause, notes []Found) {
	list = []Cause{}
	for i, f := range faults {
		if slices.ContainsFunc(faults, func(o fault) bool { return o.explains(f, edges) }) {
			continue
		}
		if f.Note {
			notes = append(notes, Found{f.check.Code, f.Object, f.What})
			continue
		}
		fix := cmp.Or(f.Fix, f.check.Fix)
		at := slices.IndexFunc(list, func(c Cause) bool { return c.Code == f.check.Code && c.Fix == fix })
		if at < 0 {
			at = len(list)
			list = append(list, newCause(f.check, fix))
		}
		c := &list[at]
		c.add(f)
		for _, o := range explained(i, faults, edges) {
			c.explain(o)
		}
	}
	return list, notes
}

// explained returns what a fault explains, directly or by another one.
func explained(root int, faults []fault, edges []Edge) (below []fault) {
	seen := map[int]bool{root: true}
	for open := []int{root}; len(open) > 0; open = open[1:] {
		for i, o := range faults {
			if !seen[i] && faults[open[0]].explains(o, edges) {
				seen[i] = true
				open = append(open, i)
				below = append(below, o)
			}
		}
	}
	return below
}
