// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestApplyLeavesTheTree applies random edits to random trees: the result is that of the same edits
// made in a copy of the whole, and the tree that was given is as before, also once the result is
// edited again.
func TestApplyLeavesTheTree(t *testing.T) {
	random := treeDice{rand.New(rand.NewPCG(1, 2))}
	edited := 0
	refused := 0
	for range 20000 {
		tree := random.tree(3)
		first := tree
		before := copied(tree)
		for range 2 {
			ops := random.ops()
			want := copied(tree).(map[string]any)
			isPossible := applyInPlace(want, ops)

			out, err := Apply(tree, ops)
			must.That(t, (err == nil) == isPossible, "%v with %v: %v, possible %t", tree, ops, err, isPossible)
			must.That(t, reflect.DeepEqual(first, before), "the tree was changed by %v: %v, before %v", ops, first, before)
			if !isPossible {
				refused++
				break
			}
			must.That(t, reflect.DeepEqual(out, want), "%v with %v: %v, want %v", tree, ops, out, want)
			edited++
			tree = out
		}
	}

	check.That(t, edited >= 5000 && refused >= 500, "%d edits made, %d refused", edited, refused)
}

// treeDice make random trees, and random changes to them.
type treeDice struct{ *rand.Rand }

func (d treeDice) name() string { return []string{"a", "b", "c"}[d.IntN(3)] }

func (d treeDice) tree(depth int) map[string]any {
	table := map[string]any{}
	for _, name := range []string{"a", "b", "c"} {
		switch d.IntN(4) {
		case 0:
			table[name] = int64(d.IntN(9))
		case 1, 2:
			if depth > 0 {
				table[name] = d.tree(depth - 1)
			}
		}
	}
	return table
}

func (d treeDice) ops() (ops []Op) {
	for range 1 + d.IntN(4) {
		var path []string
		for range 1 + d.IntN(4) {
			path = append(path, d.name())
		}
		if d.IntN(3) == 0 {
			ops = append(ops, Unset(path))
		} else {
			ops = append(ops, Set(path, int64(10+d.IntN(9))))
		}
	}
	return ops
}

// copied is a value that shares no table with the first one.
func copied(v any) any {
	table, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := map[string]any{}
	for name, kid := range table {
		out[name] = copied(kid)
	}
	return out
}

// applyInPlace is Apply without sharing; ok is false where a path leads through a value.
func applyInPlace(tree map[string]any, ops []Op) (ok bool) {
	for _, op := range ops {
		last := len(op.Path) - 1
		table := tree
		for _, name := range op.Path[:last] {
			if _, exists := table[name]; !exists {
				table[name] = map[string]any{}
			}
			table, ok = table[name].(map[string]any)
			if !ok {
				return false
			}
		}

		key := op.Path[last]
		if op.Value == nil {
			delete(table, key)
		} else {
			table[key] = op.Value
		}
	}
	return true
}
