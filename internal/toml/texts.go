// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"maps"
	"slices"
	"sync"
)

// Texts remembers the values of the texts that were read last. One configuration is asked for many times in a run: as found, as it was
// before gpuadm's edit, and as the edit makes it; by the facts, the plan and the proof. Values that it returns are shared, and no caller
// changes them. nil remembers nothing.
type Texts struct {
	mu   sync.Mutex
	last []text // the newest last
}

type text struct {
	data []byte
	tree map[string]any
	err  error
}

// mostTexts is how many texts are remembered: a configuration that imports more files is parsed as if there were no Texts.
const mostTexts = 8

// Values is the function of that name, which parses each text once.
func (t *Texts) Values(data []byte) (map[string]any, error) {
	if t == nil {
		return Values(data)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range t.last {
		if bytes.Equal(known.data, data) {
			return known.tree, known.err
		}
	}
	tree, err := Values(data)
	if len(t.last) == mostTexts {
		t.last = slices.Delete(t.last, 0, 1)
	}
	t.last = append(t.last, text{data, tree, err})
	return tree, err
}

// Equal has comparisons of facts pass over what is remembered.
func (t *Texts) Equal(*Texts) bool { return true }

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
