// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/host"
)

// width is the most columns of a picture.
const width = 80

// cell is how many columns a memory slice has in a picture: 8 on most GPUs, 5 where there are 12 slices, 15 on an A30.
func (m Model) cell() int {
	if m.Memory == 0 {
		return 1
	}
	return max(1, min(15, (width-16)/m.Memory))
}

// Picture draws a GPU's state, in at most 80 columns; every line ends in a newline.
//
//	slice  0       1       2       3       4       5       6       7
//	       |3g.40gb                        |2g.20gb        |1g.10gb|-      |
//	       2g.20gb@4(1c,1c)
func (m Model) Picture(s State) string {
	if s.Mode != On {
		return fmt.Sprintf("MIG is %s\n", s)
	}
	cell := m.cell()
	var ruler, bar strings.Builder
	for i := range m.Memory {
		fmt.Fprintf(&ruler, "%-*d", cell, i)
	}
	var beside []string
	for at := 0; at < m.Memory; {
		text, size := "-", 1
		p, known := m.placedAt(s, at)
		if known {
			text, size = p.label(cell*p.size-1), p.size
			if note := p.note(text); note != "" {
				beside = append(beside, note)
			}
		}
		fmt.Fprintf(&bar, "|%-*s", cell*size-1, text)
		at += size
	}
	out := "slice  "
	if m.parts() {
		out = "part   "
	}
	out += strings.TrimRight(ruler.String(), " ") + "\n       " + bar.String() + "|\n"
	for _, p := range s.Parts {
		if _, known := m.placedAt(s, p.Start); !known {
			beside = append(beside, p.String()+" is no instance that this GPU offers")
		}
	}
	if m.parts() {
		beside = append(beside, "which memory slices these are, the driver says")
	}
	if s.Next != s.Mode && s.Next != Unknown {
		beside = append(beside, "MIG is "+string(s.Next)+" after a reset")
	}
	for _, line := range beside {
		out += "       " + line + "\n"
	}
	return out
}

type drawn struct {
	Part
	size int
}

// placedAt is the instance that begins at a slice.
func (m Model) placedAt(s State, start int) (drawn, bool) {
	for _, f := range m.placedParts(s) {
		if f.profile != noProfile && f.Start == start {
			return drawn{f.Part, size(m.Profiles[m.byID(f.profile)])}, true
		}
	}
	return drawn{}, false
}

// note says what the bar cannot show of an instance.
func (p drawn) note(label string) string {
	s := p.Part.String()
	switch {
	case len(p.Compute) == 0:
		return s + " is half-made: it has no compute instance"
	case p.Busy:
		return s + " is in use"
	case s != fmt.Sprintf("%s@%d", label, p.Start):
		return s
	}
	return ""
}

// label is the longest of these names that fits: the profile; the profile without its memory; the number of slices.
func (p drawn) label(room int) string {
	n, err := parseName(p.Profile)
	if utf8.RuneCountInString(p.Profile) <= room || err != nil {
		return p.Profile[:min(len(p.Profile), room)]
	}
	n.gigabytes = 0
	if s := n.whole(); len(s) <= room {
		return s
	}
	return fmt.Sprintf("%dg", n.slices)[:min(2, room)]
}

// memory names the unit of Memory.
func (m Model) memory() string {
	if m.parts() {
		return "parts of the memory"
	}
	return "memory slices"
}

// Offer draws what a GPU can be partitioned into: each profile, how many of it fit on an empty GPU, and where.
func (m Model) Offer() string {
	rows := slices.Clone(m.Profiles)
	slices.SortStableFunc(rows, func(a, b host.Profile) int {
		return cmp.Or(size(b)-size(a), b.Slices-a.Slices)
	})
	long := len("profile")
	for _, p := range rows {
		long = max(long, len(p.Name))
	}
	cell := 2
	if m.Memory <= 4 {
		cell = 4
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d compute slices, %d %s\n", m.Name, m.Compute, m.Memory, m.memory())
	fmt.Fprintf(&b, "%-*s  id  compute  most  places\n", long, "profile")
	for _, p := range rows {
		id := strconv.Itoa(p.ID)
		if p.ID < 0 {
			id = "?"
		}
		line := fmt.Sprintf("%-*s  %2s  %7d  %4d  ", long, p.Name, id, p.Slices, p.Max)
		b.WriteString(line + places(p, cell) + "\n")
	}
	if m.parts() {
		b.WriteString("Ids and memory slices are not public: the driver says them.\n")
	}
	return b.String()
}

// places draws the places of a profile, one beside the other; or lists them where they overlap.
func places(p host.Profile, cell int) string {
	var b strings.Builder
	col := 0
	for _, at := range p.Places {
		if at.Start*cell < col {
			var list []string
			for _, at := range p.Places {
				list = append(list, fmt.Sprintf("%d:%d", at.Start, at.Size))
			}
			return strings.Join(list, " ")
		}
		b.WriteString(strings.Repeat(" ", at.Start*cell-col))
		b.WriteString("[" + strings.Repeat("=", max(0, at.Size*cell-2)) + "]")
		col = (at.Start + at.Size) * cell
	}
	return b.String()
}
