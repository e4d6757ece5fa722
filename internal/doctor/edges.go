// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	_ "embed"
	"slices"
	"strings"
)

// Edge says that one fault brings another one with it.
type Edge struct {
	By, Explains string // codes, with the part of the finding where it has one
	Of           scope
}

// scope says of which objects an Edge speaks.
type scope string

const (
	anyObject  scope = ""     // a fault of the machine, or of what all objects need
	sameObject scope = "same" // a fault of a GPU explains that of the same GPU only
)

// edgeRows are the rows of Edges: codes, codes that each of them explains, and the scope.
//
//go:embed edges.tsv
var edgeRows string

// Edges lists which fault explains which. What holds of a kubelet or an engine that does not run
// holds of one that ends again and again.
func Edges() (all []Edge) {
	for row := range strings.Lines(edgeRows) {
		by, explained, ok := strings.Cut(strings.TrimSpace(row), "\t")
		if !ok {
			continue // a comment
		}
		explained, of, _ := strings.Cut(explained, "\t")
		for by := range strings.FieldsSeq(by) {
			for explains := range strings.FieldsSeq(explained) {
				all = append(all, Edge{by, explains, scope(of)})
			}
		}
	}
	for _, codes := range [][2]string{{"KUB-001", "KUB-014"}, {"RUN-005", "RUN-010"}} {
		stopped, ending := codes[0], codes[1]
		for _, e := range all { // also those that the first pair has added
			if e.Explains == stopped {
				all = append(all, Edge{e.By, ending, e.Of})
			}
			if e.By == stopped {
				all = append(all, Edge{ending, e.Explains, e.Of})
			}
		}
	}
	return all
}

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

// causes picks the faults that no other one explains, and puts below each of them all that it
// explains, directly or not. A fault with two roots is below both. Root causes of one check with
// one fix are one Cause; those that are no fault of the machine are notes.
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
