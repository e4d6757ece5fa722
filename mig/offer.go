// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// memory names the unit of Memory.
func (m Model) memory() string {
	if m.parts() {
		return "parts of the memory"
	}
	return "memory slices"
}

// Offer draws what a GPU can be partitioned into: each profile, how many of it fit on an empty GPU,
// and where.
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
