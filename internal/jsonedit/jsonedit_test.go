// SPDX-License-Identifier: Apache-2.0

package jsonedit_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func doc(t testing.TB, text string) *jsonedit.Doc {
	t.Helper()
	d, err := jsonedit.Parse([]byte(text))
	must.That(t, err == nil, "%q: %v", text, err)
	return d
}

// A value is written as what is around it is, and no other byte changes.
func TestSet(t *testing.T) {
	for name, c := range map[string]struct {
		path, value, before, after string
	}{
		"no file":           {"a.b", "1", "", "{\n  \"a\": {\n    \"b\": 1\n  }\n}\n"},
		"blank file":        {"a", "1", " \n", "{\n  \"a\": 1\n}\n"},
		"nothing in it":     {"a", "1", "{}\n", "{\n  \"a\": 1\n}\n"},
		"one line":          {"a.b", "true", `{"x": 9007199254740993}`, `{"x": 9007199254740993, "a": {"b": true}}`},
		"one line, airy":    {"a", "1", `{ "x": 1 }`, `{ "x": 1, "a": 1 }`},
		"four blanks":       {"a.b", "1", "{\n    \"x\": \"&\"\n}", "{\n    \"x\": \"&\",\n    \"a\": {\n        \"b\": 1\n    }\n}"},
		"tabs, DOS lines":   {"a.b", "1", "{\r\n\t\"x\": 1\r\n}\r\n", "{\r\n\t\"x\": 1,\r\n\t\"a\": {\r\n\t\t\"b\": 1\r\n\t}\r\n}\r\n"},
		"object is there":   {"a.b", "1", "{\n  \"a\": {\n    \"x\": 1\n  }\n}", "{\n  \"a\": {\n    \"x\": 1,\n    \"b\": 1\n  }\n}"},
		"empty object":      {"a.b", "1", "{\n  \"a\": {}\n}", "{\n  \"a\": {\n    \"b\": 1\n  }\n}"},
		"inline in lines":   {"a.b", "1", "{\n  \"a\": { \"x\": 1 }\n}", "{\n  \"a\": { \"x\": 1, \"b\": 1 }\n}"},
		"replaced":          {"a", `"new"`, `{"b":1,"a" : "old","c":2}`, `{"b":1,"a" : "new","c":2}`},
		"null":              {"a.b", "null", `{"a": {"b": 1}}`, `{"a": {"b": null}}`},
		"the same":          {"a", `"x"`, `{"a":"\u0078"}`, `{"a":"\u0078"}`},
		"key to be escaped": {`"`, "1", `{"x":1}`, `{"x":1, "\"": 1}`},
	} {
		d := doc(t, c.before)
		got, err := d.Set(c.value, strings.Split(c.path, ".")...)
		check.That(t, err == nil && string(got) == c.after, "%s:\n%q, want\n%q: %v", name, got, c.after, err)
		again, err := doc(t, string(got)).Set(c.value, strings.Split(c.path, ".")...)
		check.That(t, err == nil && string(again) == string(got), "%s: set again: %q, %v", name, again, err)
	}
}

func TestDelete(t *testing.T) {
	for _, c := range [][3]string{
		{"a", `{"a":1}`, `{}`},
		{"a", `{"a":1, "b":2}`, `{"b":2}`},
		{"b", "{\n  \"a\": 1,\n  \"b\": 2\n}", "{\n  \"a\": 1\n}"},
		{"a.b", `{"a": { "b": [1, {"b": 2}] }}`, `{"a": {}}`},
		{"x", `{"a":1}`, `{"a":1}`},
	} {
		if got, err := doc(t, c[1]).Delete(strings.Split(c[0], ".")...); err != nil || string(got) != c[2] {
			t.Errorf("%s of %q: %q, want %q: %v", c[0], c[1], got, c[2], err)
		}
	}
}

func TestRefused(t *testing.T) {
	for text, why := range map[string]string{
		`[]`:                   "not a JSON object",
		"{\n\"a\": 1,\n}":      "line 3: ",
		"{\"a\":1, // x\n}":    "line 1: ",
		`{"a":1,"b":{},"a":2}`: `"a" is there twice`,
		"\ufeff{}":             "line 1: ",
		strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200): "nested more than",
	} {
		_, err := jsonedit.Parse([]byte(text))
		check.That(t, err != nil && strings.Contains(err.Error(), why), "%.20q: %v, want %q", text, err, why)
	}

	_, err := doc(t, "{\n \"a\": [1]}").Set("1", "a", "b")
	check.That(t, err != nil && strings.Contains(err.Error(), "line 2: a is not an object"), "%v", err)
}

func TestTakeOut(t *testing.T) {
	const before, after = `{"x": 1, "d": "old"}`, `{"x": 1, "d": "new", "r": {"n": {"p": "/x"}}, "f": {"cdi": true}}`
	for name, c := range map[string]struct{ before, after, found, rest, left string }{
		"others' key":       {before, after, `{"x": 1, "d": "new", "r": {"n": {"p": "/x"}}, "f": {"cdi": true}, "y": 2}`, `{"x": 1, "d": "old", "y": 2}`, ""},
		"beside ours":       {before, after, `{"x": 1, "d": "new", "r": {"k": 1, "n": {"p": "/x"}}, "f": {"cdi": true, "b": 1}}`, `{"x": 1, "d": "old", "r": {"k": 1}, "f": {"b": 1}}`, ""},
		"changed":           {before, after, `{"x": 1, "d": "their", "r": {"n": {"p": "/y"}}}`, `{"x": 1, "d": "their", "r": {"n": {"p": "/y"}}}`, `d is "their" (line 1), gpuadm had set "new"; r.n.p is "/y" (line 1), gpuadm had set "/x"`},
		"gone":              {before, after, `{"x": 1}`, `{"x": 1}`, ""},
		"turned back":       {before, after, `{"x": 1, "d": "old"}`, `{"x": 1, "d": "old"}`, ""},
		"rewritten":         {before, after, "{\n  \"d\": \"new\",\n  \"r\": {\"n\": {\"p\": \"/x\"}}\n}", "{\n  \"d\": \"old\"\n}", ""},
		"null before":       {`{"d": null}`, `{"d": "new"}`, `{"d": "new", "y": 2}`, `{"d": null, "y": 2}`, ""},
		"the file was ours": {"", `{"a": {"b": 1}}`, "{\n\"a\": {\"b\": 1}\n}", "", ""},
	} {
		b := []byte(c.before)
		if c.before == "" {
			b = nil
		}
		rest, left, err := jsonedit.TakeOut(b, []byte(c.after), []byte(c.found), nil)
		check.That(t, err == nil && string(rest) == c.rest && strings.Join(left, "; ") == c.left, "%s: %q, left %q, %v; want %q, %q", name, rest, left, err, c.rest, c.left)
	}
}

// FuzzSet holds for any text: what can be edited stays valid, every other value keeps its text and
// its order, a second edit changes nothing, and taking the edit out beside another one leaves what
// that other one alone would have made.
func FuzzSet(f *testing.F) {
	for _, text := range []string{"", "{}", `{"a":{"b":1},"c":[1,{"a":2}]}`, "{\r\n\t\"x\": 1e400\r\n}", `{"a":null}`, `{ "\u0061" : 9007199254740993 , "b":{ } }`} {
		f.Add([]byte(text), "a", "b")
	}
	f.Fuzz(func(t *testing.T, text []byte, key, inner string) {
		key, inner = strings.ToValidUTF8(key, "?"), strings.ToValidUTF8(inner, "?")
		d, err := jsonedit.Parse(text)
		if err != nil {
			return
		}
		out, err := d.Set(`"set"`, key, inner)
		if err != nil {
			must.That(t, !strings.Contains(err.Error(), "internal error"), "%q: %v", text, err)
			return
		}
		must.That(t, json.Valid(out), "%q became %q", text, out)
		is := must.Get(jsonedit.Parse(out))(t)
		for _, k := range d.Keys() {
			if k != key && string(d.Text(k)) != string(is.Text(k)) {
				t.Fatalf("%q of %q became %q", k, text, is.Text(k))
			}
		}

		if keys := d.Keys(); !slices.Equal(keys, is.Keys()[:len(keys)]) {
			t.Fatalf("the order of %q became that of %q", text, out)
		}
		if again, err := is.Set(`"set"`, key, inner); err != nil || string(again) != string(out) {
			t.Fatalf("set again: %q, then %q, %v", out, again, err)
		}
		others(t, text, out)
	})
}

// others takes an edit out beside one that was made since.
func others(t *testing.T, before, after []byte) {
	t.Helper()
	const theirs = "made by others"
	with := func(text []byte) []byte {
		out := must.Get(doc(t, string(text)).Set("1", theirs))(t)
		return out
	}

	rest, left, err := jsonedit.TakeOut(before, after, with(after), nil)
	must.That(t, err == nil && len(left) == 0, "%q to %q cannot be taken out: %q %v", before, after, left, err)
	must.That(t, len(jsonedit.Changes(doc(t, string(with(before))), doc(t, string(rest)))) == 0, "%q to %q, taken out beside others: %q", before, after, rest)
}
