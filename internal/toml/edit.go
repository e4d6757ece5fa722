// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/sorting"
)

// Op is one wanted difference: a value at a path, or no key there. A Table is only written where
// there is nothing.
type Op struct {
	Path  []string
	Value any // nil: gone
}

// Set is a key with a value.
func Set(path []string, value any) Op { return Op{path, value} }

// Unset is a key that is gone.
func Unset(path []string) Op { return Op{path, nil} }

// Apply returns the parsed values with the differences; it knows nothing of the text, so that it
// can prove what was done to the text. The tree stays as it is: tables on the paths are copied, and
// all others shared.
func Apply(tree map[string]any, ops []Op) (map[string]any, error) {
	return applyBelow(tree, ops, 0)
}

// applyBelow applies the differences below the table that all paths share, depth parts deep.
// Differences in one table follow each other, so that it is copied once: it may have a thousand
// keys.
func applyBelow(table map[string]any, ops []Op, depth int) (map[string]any, error) {
	out := maps.Clone(table)
	for len(ops) > 0 {
		name := ops[0].Path[depth]
		below := 0 // how many of the next differences are below this key
		for below < len(ops) && len(ops[below].Path) > depth+1 && ops[below].Path[depth] == name {
			below++
		}
		if below == 0 {
			applyValue(out, name, ops[0].Value)
			ops = ops[1:]
			continue
		}

		kid, exists := out[name]
		sub, isTable := kid.(map[string]any)
		switch {
		case !exists:
			sub = map[string]any{}
		case !isTable:
			return nil, fmt.Errorf("%s is not a table", strings.Join(ops[0].Path[:depth+1], "."))
		}

		sub, err := applyBelow(sub, ops[:below], depth+1)
		if err != nil {
			return nil, err
		}
		out[name] = sub
		ops = ops[below:]
	}

	return out, nil
}

func applyValue(table map[string]any, name string, value any) {
	switch v := value.(type) {
	case nil:
		delete(table, name)
	case Table:
		table[name] = v.asMap()
	default:
		table[name] = v
	}
}

// Edit makes the wanted differences in the text and nothing else, and proves it by parsing the
// result.
func Edit(src []byte, ops []Op) ([]byte, error) { return (*Texts)(nil).Edit(src, ops) }

// Edit is the function of that name.
func (t *Texts) Edit(src []byte, ops []Op) ([]byte, error) {
	before, err := t.Values(src)
	if err != nil {
		return nil, err
	}
	want, err := Apply(before, ops)
	if err != nil {
		return nil, err
	}

	out := src
	for len(ops) > 0 {
		out, ops, err = editSome(out, ops)
		if err != nil {
			return nil, err
		}
	}

	got, err := t.Values(out)
	if err != nil {
		return nil, fmt.Errorf("internal error: the edit would not parse: %w", err)
	}
	if !Equal(got, want) {
		return nil, fmt.Errorf("internal error: the edit would change %s", FirstDifference(want, got))
	}
	return out, nil
}

// splice puts text in the place of the bytes from start to end.
type splice struct {
	start, end int
	text       string
}

func (s splice) overlaps(o splice) bool { return s.start < o.end && o.start < s.end }

// editSome makes the differences that one parse suffices for, and returns the rest. One parse
// serves one difference of any kind, and new values of existing keys: these only move what the
// parse has found.
func editSome(src []byte, ops []Op) (out []byte, left []Op, err error) {
	var paths [][]string
	for _, op := range ops {
		paths = append(paths, op.Path)
	}
	d, err := parseFor(src, paths)
	if err != nil {
		return nil, nil, err
	}

	var splices []splice
	for i, op := range ops {
		n := d.lookup(op.Path)
		s, err := d.edit(n, op)
		overlaps := slices.ContainsFunc(splices, s.overlaps)
		needsParse := err != nil || overlaps || n == nil || op.Value == nil
		switch {
		case i > 0 && needsParse:
			return d.make(splices...), ops[i:], nil
		case err != nil:
			return nil, nil, err
		}

		splices = append(splices, s)
	}

	return d.make(splices...), nil, nil
}

// make returns the text with the splices made; none overlaps another.
func (d *Doc) make(splices ...splice) []byte {
	sorting.By(splices, func(a, b splice) int {
		return cmp.Or(a.start-b.start, a.end-b.end)
	})
	var out []byte
	at := 0
	for _, s := range splices {
		out = append(append(out, d.src[at:s.start]...), s.text...)
		at = s.end
	}

	return append(out, d.src[at:]...)
}

// edit is one difference; n is what is at its path, nil for nothing.
func (d *Doc) edit(n *node, op Op) (splice, error) {
	switch {
	case op.Value == nil && n == nil:
		return splice{}, nil
	case op.Value == nil:
		return d.takeAway(n)
	case n == nil:
		return d.add(op.Path, op.Value)
	case n.kind != leaf:
		return splice{}, fmt.Errorf("%s is a table", strings.Join(op.Path, "."))
	}

	text, err := Text(op.Value, d.quoteOf(n))
	return splice{n.value.start, n.value.end, text}, err
}

// spliceLines puts whole lines before offset at, which is the start of a line or the end of the
// file.
func (d *Doc) spliceLines(at int, lines []string) splice {
	eol := d.eol()
	text := strings.Join(lines, eol) + eol
	if at > d.top() && d.src[at-1] != '\n' {
		text = eol + text
	}
	return splice{at, at, text}
}

// add writes a value where there is none, in the style of the lines around it.
func (d *Doc) add(path []string, value any) (splice, error) {
	at := d.deepest(path)
	switch {
	case at.kind == leaf || at.kind == tables:
		return splice{}, fmt.Errorf("%s is not a table", strings.Join(at.path, "."))
	case at.kind == inlined:
		return d.addInside(at, path[len(at.path):], value)
	case at.inline != nil:
		return d.addInside(at.inline, path[len(at.inline.path):], value)
	case at.kind == dotted:
		return d.addDotted(at, path, value)
	}

	if table, ok := value.(Table); ok {
		return d.addSection(path, table)
	}

	parent := path[:len(path)-1]
	name := path[len(path)-1]
	if len(at.path) < len(parent) || at.kind == implicit {
		return d.addSection(parent, Table{{name, value}})
	}
	return d.addKey(at, name, value)
}

// addKey puts a key under the header of its table, after the keys that are there.
func (d *Doc) addKey(table *node, name string, value any) (splice, error) {
	at := d.top()
	indent := ""
	if table.expr >= 0 {
		header := d.exprs[table.expr]
		at = header.end
		indent = d.indent(header) + d.keyStep()
	}

	empty := true
	for _, e := range d.exprs {
		if !e.header && e.section == table.expr {
			at = e.end
			indent = d.indent(e)
			empty = false
		}
	}

	quote := d.quote()
	text, err := Text(value, quote)
	if err != nil {
		return splice{}, err
	}
	lines := []string{indent + KeyText(name, quote) + " = " + text}
	switch {
	case table.expr >= 0 || !empty:
	case len(d.exprs) > 0: // the first key above all headers
		at = d.aboveComments(d.exprs[0].start)
		lines = append(lines, "")
	default: // the first key of a file without headers
		at = len(d.src)
		if len(bytes.TrimSpace(d.src[d.top():])) > 0 && !d.blankBefore(at) {
			lines = slices.Insert(lines, 0, "")
		}
	}

	return d.spliceLines(at, lines), nil
}

// addDotted puts dotted keys after those that make up the table: TOML forbids giving it a [header]
// afterwards.
func (d *Doc) addDotted(table *node, path []string, value any) (splice, error) {
	var like expr
	depth := 0
	for _, e := range d.exprs {
		if e.header || e.inArray || !HasPrefix(e.path, table.path) {
			continue
		}
		inHeader := len(e.path) - len(e.keys) // parts of the path that the section's header holds
		if inHeader < len(table.path) {
			like = e
			depth = len(table.path) - inHeader
		}
	}

	if depth == 0 {
		return splice{}, fmt.Errorf("internal error: no line makes up %s", strings.Join(table.path, "."))
	}

	quote := d.quote()
	prefix := string(d.src[like.head:like.keys[depth-1].end])
	for _, name := range path[len(table.path):] {
		prefix += "." + KeyText(name, quote)
	}
	lines, err := dottedLines(d.indent(like)+prefix, value, quote)
	if err != nil {
		return splice{}, err
	}
	return d.spliceLines(like.end, lines), nil
}

func dottedLines(prefix string, value any, quote byte) ([]string, error) {
	table, ok := value.(Table)
	if !ok || len(table) == 0 {
		text, err := Text(value, quote)
		return []string{prefix + " = " + text}, err
	}

	var lines []string
	for _, p := range table {
		more, err := dottedLines(prefix+"."+KeyText(p.Key, quote), p.Value, quote)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}

	return lines, nil
}

// addInside puts a key between the braces of an inline table, after those that are there.
func (d *Doc) addInside(table *node, keys []string, value any) (splice, error) {
	quote := d.quote()
	text, err := Text(value, quote)
	if err != nil {
		return splice{}, err
	}
	parts := make([]string, len(keys))
	for i, name := range keys {
		parts[i] = KeyText(name, quote)
	}
	text = strings.Join(parts, ".") + " = " + text

	if len(table.elems) > 0 {
		last := table.elems[len(table.elems)-1].end
		return splice{last, last, ", " + text}, nil
	}
	open, end := table.value.start+1, table.value.end-1
	if len(bytes.TrimSpace(d.src[open:end])) > 0 { // comments
		end = open
	}
	return splice{open, end, " " + text + " "}, nil
}

// takeAway removes a key: its lines, or its part of an inline table.
func (d *Doc) takeAway(n *node) (splice, error) {
	if n.kind != leaf && n.kind != inlined {
		return splice{}, fmt.Errorf("%s is not a value", strings.Join(n.path, "."))
	}
	if n.inline == nil {
		e := d.exprs[n.expr]
		return splice{e.start, e.end, ""}, nil
	}

	elems := n.inline.elems
	i := slices.IndexFunc(elems, func(s span) bool { return s.end == n.value.end })
	switch {
	case i < 0:
		return splice{}, fmt.Errorf("internal error: %s is not in its table", strings.Join(n.path, "."))
	case i > 0:
		return splice{elems[i-1].end, elems[i].end, ""}, nil
	case len(elems) > 1:
		return splice{elems[0].start, elems[1].start, ""}, nil
	}

	return splice{n.inline.value.start + 1, n.inline.value.end - 1, ""}, nil
}

// sectionStyle is the indentation of headers and keys in a new section, so that it looks like the
// sections around it.
type sectionStyle struct {
	header, key string
	quote       byte
}

// sectionStyle looks at the last sibling with a header, else at the table around.
func (d *Doc) sectionStyle(path []string) sectionStyle {
	like := -1
	for i, e := range d.exprs {
		if !e.header || e.array {
			continue
		}
		sibling := len(e.path) == len(path) && HasPrefix(e.path, path[:len(path)-1])
		around := len(e.path) < len(path) && HasPrefix(path, e.path)
		nearest := like < 0 || len(e.path) >= len(d.exprs[like].path)
		if sibling || around && nearest {
			like = i
		}
	}

	s := sectionStyle{key: d.keyStep(), quote: d.quote()}
	if like >= 0 {
		s.header = d.indent(d.exprs[like])
		s.key = d.keyIndent(like, s.header+s.key)
	}
	return s
}

// keyIndent is the indentation of the first key under a header.
func (d *Doc) keyIndent(header int, otherwise string) string {
	next := header + 1
	if next < len(d.exprs) && !d.exprs[next].header {
		return d.indent(d.exprs[next])
	}
	return otherwise
}

// lines writes a section: the plain values first, then each table under a header of its own.
func (s sectionStyle) lines(header string, table Table) ([]string, error) {
	lines := []string{s.header + "[" + header + "]"}
	var subs Table
	for _, p := range table {
		if _, ok := p.Value.(Table); ok {
			subs = append(subs, p)
			continue
		}
		text, err := Text(p.Value, s.quote)
		if err != nil {
			return nil, err
		}
		lines = append(lines, s.key+KeyText(p.Key, s.quote)+" = "+text)
	}

	for _, p := range subs {
		more, err := s.lines(header+"."+KeyText(p.Key, s.quote), p.Value.(Table))
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}

	return lines, nil
}
