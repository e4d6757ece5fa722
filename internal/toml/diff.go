// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"maps"
	"slices"
)

// Change is a key whose value differs between two trees; nil where it is missing.
// Arrays are values; of tables only empty ones are, all others are looked into.
type Change struct {
	Path     []string
	Old, New any
}

// Diff lists the keys that differ, in sorted order.
func Diff(a, b map[string]any, at []string) []Change {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	var out []Change
	for _, name := range slices.Compact(names) {
		x, inA := a[name]
		y, inB := b[name]
		path := append(slices.Clone(at), name)
		s, sTable := x.(map[string]any)
		t, tTable := y.(map[string]any)
		switch {
		case sTable && tTable, sTable && !inB && len(s) > 0, tTable && !inA && len(t) > 0:
			out = append(out, Diff(s, t, path)...)
		case inA != inB || !Equal(x, y):
			out = append(out, Change{path, x, y})
		}
	}
	return out
}
