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

func (f fault) found() Found { return Found{f.check.Code, f.Object, f.What} }

// explains says whether one edge leads from a fault to another.
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
			notes = append(notes, f.found())
			continue
		}
		fix := cmp.Or(f.Fix, f.check.Fix)
		at := slices.IndexFunc(list, func(c Cause) bool { return c.Code == f.check.Code && c.Fix == fix })
		if at < 0 {
			at = len(list)
			ch := f.check
			list = append(list, Cause{Code: ch.Code, Title: ch.Title, Meaning: ch.Meaning, Fix: fix, Interrupts: ch.Interrupts, NoRepair: ch.NoRepair, Sources: ch.Sources})
		}
		c := &list[at]
		c.Found = append(c.Found, f.found())
		if command := cmp.Or(f.Command, f.check.Command); command != "" && !slices.Contains(c.Commands, command) {
			c.Commands = append(c.Commands, command)
		}
		for _, o := range explained(i, faults, edges) {
			if o := o.found(); !slices.Contains(c.Explains, o) {
				c.Explains = append(c.Explains, o)
			}
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

// Format is the version of the report's form.
const Format = 1

// Report is what doctor says of a machine.
type Report struct {
	Format int      `json:"format"`
	Host   string   `json:"host"`             // what machine this is, in a line
	Causes []Cause  `json:"causes"`           // root causes; none: no fault was found
	Unread []Unread `json:"unread,omitempty"` // what could not be checked
	Checks int      `json:"checks"`           // how many there are
	Notes  []Found  `json:"notes,omitempty"`  // what is no fault of the machine, and an operator should know
}

// Cause is a root cause: a fault that no other one explains.
type Cause struct {
	Code       string   `json:"code"`
	Title      string   `json:"title"`
	Found      []Found  `json:"found"`
	Meaning    string   `json:"meaning"`
	Explains   []Found  `json:"explains,omitempty"`
	Fix        string   `json:"fix"`
	Commands   []string `json:"commands,omitempty"`
	Interrupts string   `json:"interrupts"`
	NoRepair   string   `json:"noRepair,omitempty"` // why gpuadm repair cannot fix it
	Sources    []string `json:"sources"`
}

// Found is one fault that was found.
type Found struct {
	Code   string `json:"code,omitempty"`
	Object string `json:"object,omitempty"`
	What   string `json:"what"`
}

// Unread is a part of the machine that could not be read, so that its checks say nothing.
type Unread struct {
	What string `json:"what"`
	Why  string `json:"why"`
}
