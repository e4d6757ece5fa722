// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gotoml "github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestTakeOutRandom has every shape edited by us, and then changed outside gpuadm at random: keys
// set, removed and added, ours too, lines put in, the whole file rewritten. It never fails, changes
// no key that is not ours, and what it does not name is gone.
func TestTakeOutRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	done, kept := 0, 0
	for _, c := range corpus(t) {
		for _, h := range handlers() {
			for _, d := range []Daemon{{"1.7.24"}, {"2.1.5"}, {"2.4.2"}} {
				target, err := Target(c.tree, d, h)
				if err != nil {
					continue
				}
				before := c.tree.data(target)
				after, err := Edit(c.tree, d, h, target, before)
				if err != nil || bytes.Equal(before, after) {
					continue
				}
				for range 5 {
					found := after
					for range 1 + rng.IntN(4) {
						if then := foreign(t, rng, before, found); isTOML(then) {
							found = then
						}
					}

					left := takenOut(t, before, after, found)
					done++
					kept += min(1, len(left))
				}
			}
		}
	}

	check.That(t, done >= 500 && kept >= 100 && kept <= done*9/10, "TakeOut had %d files, and in %d of them a part of gpuadm's edit was to stay", done, kept)
}

func isTOML(data []byte) bool {
	_, err := toml.Values(data)
	return err == nil
}

// foreign changes a file outside gpuadm.
func foreign(t testing.TB, rng *rand.Rand, before, found []byte) []byte {
	tree := must.Get(toml.Values(found))(t)
	was := must.Get(toml.Values(before))(t)
	all := toml.Diff(map[string]any{}, tree, nil)
	if len(all) == 0 {
		return meddle(rng, found)
	}
	at := all[rng.IntN(len(all))]
	op := toml.Unset(at.Path)
	switch rng.IntN(7) {
	case 0:
		return meddle(rng, found)
	case 1:
		return marshalled(t, found)
	case 2: // removed
	case 3: // added beside it
		op = toml.Set(append(slices.Clone(at.Path[:len(at.Path)-1]), fmt.Sprintf("foreign%d", rng.IntN(9))), int64(rng.IntN(9)))
	case 4: // as it was before us
		op.Value = toml.ValueAt(was, at.Path)
	case 5: // a table, removed with all that is in it
		if len(at.Path) > 1 {
			op.Path = at.Path[:1+rng.IntN(len(at.Path)-1)]
		}
	default:
		switch v := at.New.(type) {
		case string:
			op.Value = v + "x"
		case bool:
			op.Value = !v
		case int64:
			op.Value = v + 1
		}
	}

	if out, err := toml.Edit(found, []toml.Op{op}); err == nil {
		return out
	}
	changed := must.Get(toml.Apply(tree, []toml.Op{op}))(t)
	out := must.Get(gotoml.Marshal(changed))(t)
	return out
}

// meddle puts lines in, and tables at the end.
func meddle(rng *rand.Rand, b []byte) []byte {
	lines := splitLines(bytes.Clone(b))
	for i := range 1 + rng.IntN(4) {
		at := rng.IntN(len(lines) + 1)
		line := []byte(fmt.Sprintf("# foreign %d\n", i))
		if rng.IntN(3) == 0 {
			line = []byte("\n")
		}
		if at > 0 && !bytes.HasSuffix(lines[at-1], []byte("\n")) {
			at--
		}
		lines = append(lines[:at], append([][]byte{line}, lines[at:]...)...)
	}

	out := joinLines(lines, "\n")
	if rng.IntN(2) == 0 {
		out = append(out, fmt.Sprintf("\n[foreign.t%d]\nx = %d\n", rng.IntN(9), rng.IntN(99))...)
	}
	return out
}

// takenOut holds that what TakeOut returns is found without our keys, by comparing single values.
func takenOut(t testing.TB, before, after, found []byte) (left []string) {
	t.Helper()
	got, left, err := engine.TakeOut(before, after, found)
	must.That(t, err == nil, "%v\n--- before\n%s\n--- after\n%s\n--- found\n%s", err, before, after, found)
	has, is, was, became := leaves(t, got), leaves(t, found), leaves(t, before), leaves(t, after)
	named := func(key string) bool {
		path := strings.Split(key, "\x00")[1:]
		return slices.ContainsFunc(left, func(text string) bool {
			for n := range path {
				if strings.HasPrefix(text, toml.ShowPath(path[:n+1])+" is ") {
					return true
				}
			}
			return false
		})
	}

	fail := func(key, what string) {
		t.Helper()
		t.Fatalf("%q %s; left %q\n--- before\n%s\n--- after\n%s\n--- found\n%s\n--- got\n%s", key, what, left, before, after, found, got)
	}

	keys := maps.Clone(is)
	maps.Copy(keys, has)
	for key := range keys {
		ours := was[key] != became[key]
		switch {
		case !ours && has[key] != is[key]:
			fail(key, "was changed, and is not ours")
		case !ours || has[key] == was[key] || is[key] == "" && has[key] == "":
		case named(key) && has[key] != is[key]:
			fail(key, "is said to stay, and was changed")
		case !named(key) && !(key == "\x00version" && has[key] == is[key]):
			fail(key, "is not what it was, and not named")
		}
	}

	if again, _, err := engine.TakeOut(before, after, got); err != nil || got != nil && !bytes.Equal(again, got) {
		fail("", fmt.Sprintf("is taken out twice: %v\n%s", err, again))
	}
	for _, l := range splitLines(found) {
		must.That(t, !bytes.Contains(l, []byte("# foreign")) || bytes.Contains(got, bytes.TrimSpace(l)), "%q was lost:\n%s", l, got)
	}
	return left
}

// joinLines ends every line but the last: the former last line may be further up now.
func joinLines(lines [][]byte, eol string) []byte {
	for i, l := range lines {
		if i < len(lines)-1 && !bytes.HasSuffix(l, []byte("\n")) {
			if eol == "" {
				eol = "\n"
			}
			lines[i] = append(l[:len(l):len(l)], eol...)
		}
	}
	return bytes.Join(lines, nil)
}
