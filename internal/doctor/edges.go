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
	eachOne    scope = "each" // a fault of a GPU explains that one GPU is missing, and not that eight are
)

// edgeRows are the rows of Edges: codes, codes that each of them explains, and the scope.
//
//go:embed edges.tsv
var edgeRows string

// Edges lists which fault explains which. A row about a kubelet or an engine that does not run
// also counts for a kubelet or an engine that ends again and again.
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

// graph is the faults of a machine, and which can explain which.
type graph struct {
	faults []fault
	edges  []Edge
}

// explains says whether one edge leads from a fault to another.
func (g graph) explains(f, o fault) bool {
	return slices.ContainsFunc(g.edges, func(e Edge) bool {
		if e.By != f.code() || e.Explains != o.code() {
			return false
		}
		switch e.Of {
		case sameObject:
			return f.Object == o.Object
		case eachOne:
			return g.explainsAll(o)
		}

		return true
	})
}

// explainsAll reports whether as many GPUs have a fault of their own as are missing.
func (g graph) explainsAll(missing fault) bool {
	sick := map[string]bool{}
	for _, f := range g.faults {
		isCause := func(e Edge) bool {
			return e.Of == eachOne && e.By == f.code() && e.Explains == missing.code()
		}
		if slices.ContainsFunc(g.edges, isCause) {
			sick[f.Object] = true
		}
	}

	return len(sick) >= missing.Count
}

// causes returns the faults that no other one explains, each with all that it explains, directly or
// not. A fault with two root causes is listed at both. Root causes of one check with one fix are
// one Cause. Faults that are not the machine's are notes, unless they explain a fault of
// the machine.
func causes(faults []fault, edges []Edge) (list []Cause, notes []Found) {
	g := graph{faults, edges}
	list = []Cause{}
	for i, root := range faults {
		explainsRoot := func(other fault) bool { return g.explains(other, root) }
		if slices.ContainsFunc(faults, explainsRoot) {
			continue
		}
		below := g.explained(i)
		if root.Note && len(below) == 0 {
			notes = append(notes, root.found())
			continue
		}

		fix := cmp.Or(root.Fix, root.check.Fix)
		isSame := func(c Cause) bool { return c.Code == root.check.Code && c.Fix == fix }
		at := slices.IndexFunc(list, isSame)
		if at < 0 {
			at = len(list)
			list = append(list, newCause(root.check, fix))
		}

		cause := &list[at]
		cause.NoRepair = cmp.Or(cause.NoRepair, root.Other)
		cause.Found = append(cause.Found, root.found())
		command := cmp.Or(root.Command, root.check.Command)
		if command != "" && !slices.Contains(cause.Commands, command) {
			cause.Commands = append(cause.Commands, command)
		}
		for _, other := range below {
			if found := other.found(); !slices.Contains(cause.Explains, found) {
				cause.Explains = append(cause.Explains, found)
			}
		}
	}

	return list, notes
}

func newCause(check Check, fix string) Cause {
	return Cause{
		Code:       check.Code,
		Severity:   check.Severity,
		Title:      check.Title,
		Meaning:    check.Meaning,
		Fix:        fix,
		Interrupts: check.Interrupts,
		NoRepair:   check.NoRepair,
		Sources:    check.Sources,
	}
}

// explained returns what a fault explains, directly or by another one.
func (g graph) explained(root int) (below []fault) {
	seen := map[int]bool{root: true}
	for open := []int{root}; len(open) > 0; open = open[1:] {
		for i, o := range g.faults {
			if !seen[i] && g.explains(g.faults[open[0]], o) {
				seen[i] = true
				open = append(open, i)
				below = append(below, o)
			}
		}
	}

	return below
}
