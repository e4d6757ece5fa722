// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"maps"
	"slices"
)

// tomlChange is a key whose value differs between two trees; nil where it is missing.
// Arrays are values; of tables only empty ones are, all others are looked into.
type tomlChange struct {
	path     []string
	old, new any
}

// tomlDiff lists the keys that differ, in sorted order.
func tomlDiff(a, b map[string]any, at []string) []tomlChange {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	var out []tomlChange
	for _, name := range slices.Compact(names) {
		x, inA := a[name]
		y, inB := b[name]
		path := append(slices.Clone(at), name)
		s, sTable := x.(map[string]any)
		t, tTable := y.(map[string]any)
		switch {
		case sTable && tTable, sTable && !inB && len(s) > 0, tTable && !inA && len(t) > 0:
			out = append(out, tomlDiff(s, t, path)...)
		case inA != inB || !tomlEqual(x, y):
			out = append(out, tomlChange{path, x, y})
		}
	}
	return out
}
