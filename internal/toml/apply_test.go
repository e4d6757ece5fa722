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
	names := []string{"a", "b", "c"}
	random := rand.New(rand.NewPCG(1, 2))
	var grow func(depth int) map[string]any
	grow = func(depth int) map[string]any {
		table := map[string]any{}
		for _, name := range names {
			switch random.IntN(4) {
			case 0:
				table[name] = int64(random.IntN(9))
			case 1, 2:
				if depth > 0 {
					table[name] = grow(depth - 1)
				}
			}
		}

		return table
	}

	var whole func(any) any
	whole = func(v any) any {
		table, ok := v.(map[string]any)
		if !ok {
			return v
		}
		out := map[string]any{}
		for name, kid := range table {
			out[name] = whole(kid)
		}
		return out
	}
	// inPlace is Apply without sharing.
	inPlace := func(tree map[string]any, ops []Op) bool {
		for _, op := range ops {
			at := tree
			for _, name := range op.Path[:len(op.Path)-1] {
				if _, there := at[name]; !there {
					at[name] = map[string]any{}
				}
				table, ok := at[name].(map[string]any)
				if !ok {
					return false
				}
				at = table
			}

			if op.Value == nil {
				delete(at, op.Path[len(op.Path)-1])
			} else {
				at[op.Path[len(op.Path)-1]] = op.Value
			}
		}
		return true
	}

	edited, refused := 0, 0
	for range 20000 {
		tree := grow(3)
		before := whole(tree)
		first := tree
		for range 2 {
			var ops []Op
			for range 1 + random.IntN(4) {
				var path []string
				for range 1 + random.IntN(4) {
					path = append(path, names[random.IntN(len(names))])
				}
				if random.IntN(3) == 0 {
					ops = append(ops, Unset(path))
				} else {
					ops = append(ops, Set(path, int64(10+random.IntN(9))))
				}
			}

			want := whole(tree).(map[string]any)
			possible := inPlace(want, ops)
			out, err := Apply(tree, ops)
			must.That(t, (err == nil) == possible && (!possible || reflect.DeepEqual(out, want)), "%v with %v: %v, %v; want %v", tree, ops, out, err, want)
			must.That(t, reflect.DeepEqual(first, before), "the tree was changed by %v: %v, before %v", ops, first, before)
			if !possible {
				refused++
				break
			}
			edited++
			tree = out
		}
	}

	check.That(t, edited >= 5000 && refused >= 500, "%d edits made, %d refused", edited, refused)
}
