// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import "slices"

// fault is a finding and its check.
type fault struct {
	check Check
	Finding
}

// explains says whether a fault brings another one with it, by one edge.
func (f fault) explains(o fault, edges []Edge) bool {
	return slices.ContainsFunc(edges, func(e Edge) bool {
		return e.By == f.check.Code && e.Explains == o.check.Code && (e.Of == anyObject || f.Object == o.Object)
	})
}

// causes picks the faults that no other one explains, and puts below each of them all that it explains, directly or not. A fault with two
// roots is below both. Root causes of one check are one Cause; those that are no fault
// of the machine are notes.
func causes(faults []fault, edges []Edge) (list []Cause, notes []Found) {
	list = []Cause{}
	for i, f := range faults {
		if slices.ContainsFunc(faults, func(o fault) bool { return o.explains(f, edges) }) {
			continue
		}
		if f.check.Note {
			notes = append(notes, Found{f.check.Code, f.Object, f.What})
			continue
		}
		if n := len(list); n == 0 || list[n-1].Code != f.check.Code {
			list = append(list, newCause(f.check))
		}
		c := &list[len(list)-1]
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
