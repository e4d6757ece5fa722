// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestEditTOML(t *testing.T) {
	set := func(v any, path ...string) Op { return Op{path, v} }
	for name, c := range map[string]struct {
		before string
		op     Op
		after  string
	}{
		"value":                    {"a = 1 # x\n", set(int64(2), "a"), "a = 2 # x\n"},
		"value of another type":    {"a = [\n 1, # y\n]\n", set("z", "a"), "a = \"z\"\n"},
		"quotation mark kept":      {"a = 'x'\n", set("y", "a"), "a = 'y'\n"},
		"quotation mark not kept":  {"a = 'x'\n", set("it's", "a"), "a = \"it's\"\n"},
		"control character":        {"a = 'x'\n", set("\x01\"\\\n", "a"), "a = \"\\u0001\\\"\\\\\\u000A\"\n"},
		"top, no keys":             {"# c\n[t]\n", set(true, "a"), "a = true\n\n# c\n[t]\n"},
		"top, after keys":          {"b = 1\n\n[t]\nc = 2\n", set(true, "a"), "b = 1\na = true\n\n[t]\nc = 2\n"},
		"key of a table":           {"[t]\n  b = 1\n\n[u]\n", set(1.5, "t", "a"), "[t]\n  b = 1\n  a = 1.5\n\n[u]\n"},
		"key of an empty table":    {"[t]\n[u]\n  x = 1\n", set(1.0, "t", "a"), "[t]\n  a = 1.0\n[u]\n  x = 1\n"},
		"key of no table":          {"", set("x", "t", "u", "a b"), "[t.u]\n  \"a b\" = \"x\"\n"},
		"upper table":              {"[t.u]\nx = 1\n", set("x", "t", "a"), "[t]\na = \"x\"\n\n[t.u]\nx = 1\n"},
		"inline":                   {"t = {a = 1}\n", set("x", "t", "b"), "t = {a = 1, b = \"x\"}\n"},
		"inline, empty":            {"t = {}\n", set("x", "t", "b"), "t = { b = \"x\" }\n"},
		"inline, comment in it":    {"t = { # c\n}\n", set("x", "t", "b"), "t = { b = \"x\"  # c\n}\n"},
		"inline, lines":            {"t = {\n  a = 1, # c\n}\n", set("x", "t", "b"), "t = {\n  a = 1, b = \"x\", # c\n}\n"},
		"inline, dotted in it":     {"t = {u.a = 1}\n", set("x", "t", "u", "b"), "t = {u.a = 1, u.b = \"x\"}\n"},
		"dotted":                   {"t.a = 1\nx = 1\n", set("x", "t", "b"), "t.a = 1\nt.b = \"x\"\nx = 1\n"},
		"dotted, deeper":           {"[s]\n t.a = 1\n", set(Table{{"c", "x"}, {"d", Table{}}}, "s", "t", "b"), "[s]\n t.a = 1\n t.b.c = \"x\"\n t.b.d = {}\n"},
		"away":                     {"a = 1\nb = 2 # c\nc = 3\n", set(nil, "b"), "a = 1\nc = 3\n"},
		"away, missing":            {"a = 1\n", set(nil, "b"), "a = 1\n"},
		"away, lines":              {"b = [\n 1,\n]\nc = 3\n", set(nil, "b"), "c = 3\n"},
		"away, inline first":       {"t = {a = 1, b = 2}\n", set(nil, "t", "a"), "t = {b = 2}\n"},
		"away, inline last":        {"t = {a = 1, b = 2}\n", set(nil, "t", "b"), "t = {a = 1}\n"},
		"away, inline only":        {"t = {a = 1}\n", set(nil, "t", "a"), "t = {}\n"},
		"date":                     {"a = 1\n", set(toml.LocalDate{Year: 2026, Month: 1, Day: 2}, "b"), "a = 1\nb = 2026-01-02\n"},
		"time":                     {"a = 1\n", set(time.Date(2026, 1, 2, 3, 4, 5, 6000000, time.UTC), "b"), "a = 1\nb = 2026-01-02T03:04:05.006Z\n"},
		"not a number":             {"a = nan\n", set(math.Inf(-1), "b"), "a = nan\nb = -inf\n"},
		"big number":               {"a = 1\n", set(1e300, "b"), "a = 1\nb = 1e+300\n"},
		"array of tables":          {"a = 1\n", set([]any{map[string]any{"x": int64(1)}, int64(2)}, "b"), "a = 1\nb = [{ x = 1 }, 2]\n"},
		"same name below an array": {"[[t.x]]\na = 1\n[t.x.u]\nb = 2\n", set("x", "t", "u", "b"), "[[t.x]]\na = 1\n[t.x.u]\nb = 2\n\n[t.u]\nb = \"x\"\n"},
		"comment like a table":     {"a = '''\n# x\n[t]\n'''\n[t]\nb = 1\n", set("x", "t", "c"), "a = '''\n# x\n[t]\n'''\n[t]\nb = 1\nc = 'x'\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Edit([]byte(c.before), []Op{c.op})
			check.That(t, err == nil && string(got) == c.after, "got %v\n%s\nwant\n%s", err, got, c.after)
		})
	}
}

// TestShow: a message has a value, or says in words what it is.
func TestShow(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 80)
	for _, x := range []struct {
		value any
		want  string
	}{
		{"x", `"x"`},
		{[]any{int64(1), "x"}, `[1, "x"]`},
		{nil, "nothing"},
		{string(long), "a long string"},
		{[]any{string(long)}, "a long array"},
		{map[string]any{"x": string(long)}, "a long table"},
	} {
		check.Equal(t, Show(x.value), x.want, "%v is", x.value)
	}
}

// editWhole is Edit by a parse that has the places of all keys, one difference at a time.
func editWhole(src []byte, op Op) ([]byte, error) {
	d, err := Parse(src)
	if err != nil {
		return nil, err
	}
	s, err := d.edit(d.lookup(op.Path), op)
	if err != nil {
		return nil, err
	}
	return d.make(s), nil
}

// TestEditAtOnce: several differences at once make the same text as one after the other.
func TestEditAtOnce(t *testing.T) {
	files := []string{
		"",
		"a = 1\nb = 'x'\n\n[t]\n  a = 1 # c\n  b = [\n 1,\n]\n[t.u]\n  a = \"y\"\n",
		"t = {a = 1, b = 2, u = {a = 3}}\na = 'x'\n",
		"t.a = 1\nt.u.b = 'x'\n[s]\n",
		"[t]\n[t.u]\na = true\n\n[[s]]\na = 1\n",
	}
	paths := [][]string{{"a"}, {"b"}, {"t", "a"}, {"t", "b"}, {"t", "u", "a"}, {"t", "u", "b"}, {"s", "a"}, {"t", "u"}}
	values := []any{nil, int64(2), "z", []any{"p", "q"}, Table{{"k", "v"}}, true}
	random, same := rand.New(rand.NewPCG(1, 2)), 0
	for range 20_000 {
		src := []byte(files[random.IntN(len(files))])
		var ops []Op
		for range 1 + random.IntN(5) {
			ops = append(ops, Op{paths[random.IntN(len(paths))], values[random.IntN(len(values))]})
		}
		want, err := src, error(nil)
		for _, op := range ops {
			before := want
			if want, err = Edit(before, []Op{op}); err != nil {
				break
			}
			whole, err := editWhole(before, op)
			must.That(t, err == nil && bytes.Equal(whole, want), "%s\n%v\n%s\nby a parse of the whole: %v\n%s", before, op, want, err, whole)
		}

		if err != nil {
			continue // a step alone may be refused that the next one makes good
		}
		got, err := Edit(src, ops)
		must.That(t, err == nil && bytes.Equal(got, want), "%s\n%v\nat once: %v\n%s\none by one:\n%s", src, ops, err, got, want)
		if len(ops) > 1 {
			same++
		}
	}

	check.That(t, same >= 2000, "only %d of them were compared", same)
}

func TestEditTOMLCannot(t *testing.T) {
	for name, c := range map[string]struct {
		before string
		op     Op
	}{
		"through a value":  {"a = 1\n", Op{[]string{"a", "b"}, "x"}},
		"through an array": {"[[a]]\nb = 1\n", Op{[]string{"a", "c"}, "x"}},
		"over a table":     {"[a]\nb = 1\n", Op{[]string{"a"}, "x"}},
		"a table away":     {"[a]\nb = 1\n", Op{[]string{"a"}, nil}},
		"not UTF-8":        {"a = 1\n", Op{[]string{"b"}, "\xff"}},
		"odd type":         {"a = 1\n", Op{[]string{"b"}, struct{}{}}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Edit([]byte(c.before), []Op{c.op})
			check.That(t, err != nil && out == nil, "got %q, want an error", out)
		})
	}
}

// TestProofCatches holds the proof against edits of the text that do more or less than was asked.
func TestProofCatches(t *testing.T) {
	a, _ := Values([]byte("a = 1\nb = 1.0\n"))
	for _, other := range []string{"a = 1.0\nb = 1.0\n", "a = 1\nb = 1.0\nc = {}\n", "a = 1\n", "a = '1'\nb = 1.0\n"} {
		b := must.Get(Values([]byte(other)))(t)
		check.That(t, !Equal(a, b) && !Equal(b, a), "%q passes for %v", other, a)
	}
}
