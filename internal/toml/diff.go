// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"maps"
	"slices"
	"strings"
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
		old, inA := a[name]
		now, inB := b[name]
		path := append(slices.Clone(at), name)
		oldTable, wasTable := old.(map[string]any)
		newTable, isTable := now.(map[string]any)
		added := isTable && !inA && len(newTable) > 0
		removed := wasTable && !inB && len(oldTable) > 0
		switch {
		case wasTable && isTable, added, removed:
			out = append(out, Diff(oldTable, newTable, path)...)
		case inA != inB || !Equal(old, now):
			out = append(out, Change{path, old, now})
		}
	}

	return out
}

// FirstDifference names a key in which the trees differ, for a message.
func FirstDifference(a, b map[string]any) string {
	diff := Diff(a, b, nil)
	if len(diff) == 0 {
		return "the number of empty tables"
	}
	return strings.Join(diff[0].Path, ".")
}
