// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// Draw draws which memory slices the partitions of a GPU take, before and after a change; "" if the
// driver does not say what the GPU can be partitioned into.
func (g gpu) Draw(ctx context.Context, v host.View, before, after converge.State) string {
	d, err := g.cache().ask(ctx, v)
	if err != nil {
		return ""
	}
	found, known := find(d, g.address)
	if !known {
		return ""
	}
	m, errModel := Of(found)
	was, errBefore := ParseState(string(before))
	will, errAfter := ParseState(string(after))
	if cmp.Or(errModel, errBefore, errAfter) != nil {
		return ""
	}
	return m.draw(was, will)
}

// A row draws all partitions of one kind.
type row struct{ name, places string }

// draw draws two states as Offer draws places: a row for each kind of partition. A row with "-"
// goes, a row with "+" comes, and a row without a sign is in both states.
func (m Model) draw(before, after State) string {
	was := m.rows(before)
	will := m.rows(after)
	width := 0
	for _, r := range slices.Concat(was, will) {
		width = max(width, utf8.RuneCountInString(r.name))
	}

	var b strings.Builder
	line := func(sign string, r row) {
		text := fmt.Sprintf("%s %-*s  %s", sign, width, r.name, r.places)
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}

	for _, r := range was {
		if !slices.Contains(will, r) {
			line("-", r)
		}
	}

	for _, r := range will {
		sign := "+"
		if slices.Contains(was, r) {
			sign = " "
		}
		line(sign, r)
	}

	return b.String()
}

// rows are the rows of a state, the largest partitions first.
func (m Model) rows(s State) (list []row) {
	switch {
	case s.Mode == Off:
		return []row{{name: "MIG off"}}
	case len(s.Parts) == 0:
		return []row{{name: "no partition"}}
	}

	kinds := map[string][]host.Span{}
	var names []string
	for _, p := range s.Parts {
		name, _, _ := strings.Cut(p.String(), "@")
		_, compute, split := strings.Cut(p.String(), "(")
		if split {
			name += " (" + compute
		}
		if kinds[name] == nil {
			names = append(names, name)
		}
		kinds[name] = append(kinds[name], m.place(p))
	}

	bySize := func(a, b string) int { return kinds[b][0].Size - kinds[a][0].Size }
	sorting.By(names, bySize)
	for _, name := range names {
		places := host.Profile{Places: kinds[name]}
		list = append(list, row{name, drawPlaces(places, m.cell())})
	}

	return list
}

// place is where a partition is. One whose profile the driver no longer lists is drawn with one
// slice.
func (m Model) place(p Part) host.Span {
	for _, profile := range m.Profiles {
		for _, at := range profile.Places {
			if strings.TrimPrefix(profile.Name, "MIG ") == p.Profile && at.Start == p.Start {
				return at
			}
		}
	}
	return host.Span{Start: p.Start, Size: 1}
}
