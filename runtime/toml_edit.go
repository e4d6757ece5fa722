// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// tomlOp is one wanted difference: the value at path shall be this one, or the key shall be gone.
// A tomlTable is only ever put where nothing stands.
type tomlOp struct {
	path  []string
	value any // nil: gone
}

// applyOps changes the parsed values; it knows nothing of the text, so that it can prove what was done to the text.
func applyOps(tree map[string]any, ops []tomlOp) (map[string]any, error) {
	out := copyTable(tree)
	for _, op := range ops {
		at := out
		last := len(op.path) - 1
		for i, name := range op.path[:last] {
			kid, there := at[name]
			if !there {
				kid = map[string]any{}
				at[name] = kid
			}
			table, ok := kid.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s is not a table", strings.Join(op.path[:i+1], "."))
			}
			at = table
		}
		switch v := op.value.(type) {
		case nil:
			delete(at, op.path[last])
		case tomlTable:
			at[op.path[last]] = v.asMap()
		default:
			at[op.path[last]] = v
		}
	}
	return out, nil
}

// editTOML makes the wanted differences in the text and nothing else, and proves it by parsing the result.
func editTOML(src []byte, ops []tomlOp) ([]byte, error) {
	before, err := tomlTree(src)
	if err != nil {
		return nil, err
	}
	want, err := applyOps(before, ops)
	if err != nil {
		return nil, err
	}
	out := src
	for _, op := range ops {
		if out, err = editOnce(out, op); err != nil {
			return nil, err
		}
	}
	got, err := tomlTree(out)
	if err != nil {
		return nil, fmt.Errorf("internal error: the edit would not parse: %w", err)
	}
	if !tomlEqual(got, want) {
		return nil, fmt.Errorf("internal error: the edit would change %s", firstDifference(want, got))
	}
	return out, nil
}

func editOnce(src []byte, op tomlOp) ([]byte, error) {
	d, err := parseTOML(src)
	if err != nil {
		return nil, err
	}
	n := d.lookup(op.path)
	switch {
	case op.value == nil && n == nil:
		return src, nil
	case op.value == nil:
		return d.takeAway(n)
	case n == nil:
		return d.add(op.path, op.value)
	case n.kind != tomlLeaf:
		return nil, fmt.Errorf("%s is a table", strings.Join(op.path, "."))
	}
	text, err := tomlText(op.value, d.quoteOf(n))
	if err != nil {
		return nil, err
	}
	return d.splice(n.value.start, n.value.end, text), nil
}

func (d *tomlDoc) splice(start, end int, text string) []byte {
	return slices.Concat(d.src[:start], []byte(text), d.src[end:])
}

// spliceLines puts whole lines before offset at, which is the start of a line or the end of the file.
func (d *tomlDoc) spliceLines(at int, lines []string) []byte {
	eol := d.eol()
	text := strings.Join(lines, eol) + eol
	if at > d.top() && d.src[at-1] != '\n' {
		text = eol + text
	}
	return d.splice(at, at, text)
}

// add puts a value where nothing stands, in the manner of what is around it.
func (d *tomlDoc) add(path []string, value any) ([]byte, error) {
	at := d.deepest(path)
	switch {
	case at.kind == tomlLeaf || at.kind == tomlTables:
		return nil, fmt.Errorf("%s is not a table", strings.Join(at.path, "."))
	case at.kind == tomlInline:
		return d.addInside(at, path[len(at.path):], value)
	case at.inline != nil:
		return d.addInside(at.inline, path[len(at.inline.path):], value)
	case at.kind == tomlDotted:
		return d.addDotted(at, path, value)
	}
	if table, ok := value.(tomlTable); ok {
		return d.addSection(path, table)
	}
	if parent := path[:len(path)-1]; len(at.path) < len(parent) || at.kind == tomlImplicit {
		return d.addSection(parent, tomlTable{{path[len(path)-1], value}})
	}
	return d.addKey(at, path[len(path)-1], value)
}

// addKey puts a key under the header of its table, after the keys that are there.
func (d *tomlDoc) addKey(table *tomlNode, name string, value any) ([]byte, error) {
	at, indent, quote := d.top(), "", d.quote()
	if table.expr >= 0 {
		h := d.exprs[table.expr]
		at, indent = h.end, d.indent(h)+d.keyStep()
	}
	empty := true
	for _, e := range d.exprs {
		if !e.header && e.section == table.expr {
			at, indent, empty = e.end, d.indent(e), false
		}
	}
	text, err := tomlText(value, quote)
	if err != nil {
		return nil, err
	}
	lines := []string{indent + tomlKeyText(name, quote) + " = " + text}
	switch {
	case table.expr >= 0 || !empty:
	case len(d.exprs) > 0:
		at = d.aboveComments(d.exprs[0].start)
		lines = append(lines, "")
	default:
		at = len(d.src)
		if len(bytes.TrimSpace(d.src[d.top():])) > 0 && !d.blankBefore(at) {
			lines = slices.Insert(lines, 0, "")
		}
	}
	return d.spliceLines(at, lines), nil
}

// addDotted puts dotted keys after those that make up the table: TOML forbids giving it a [header] afterwards.
func (d *tomlDoc) addDotted(table *tomlNode, path []string, value any) ([]byte, error) {
	var like tomlExpr
	depth := 0
	for _, e := range d.exprs {
		above := len(e.path) - len(e.keys) // parts of the path that the section's header holds
		if !e.header && !e.inArray && hasPrefix(e.path, table.path) && above < len(table.path) {
			like, depth = e, len(table.path)-above
		}
	}
	if depth == 0 {
		return nil, fmt.Errorf("internal error: no line makes up %s", strings.Join(table.path, "."))
	}
	quote := d.quote()
	prefix := string(d.src[like.head:like.keys[depth-1].raw.end])
	for _, name := range path[len(table.path):] {
		prefix += "." + tomlKeyText(name, quote)
	}
	lines, err := dottedLines(d.indent(like)+prefix, value, quote)
	if err != nil {
		return nil, err
	}
	return d.spliceLines(like.end, lines), nil
}

func dottedLines(prefix string, value any, quote byte) ([]string, error) {
	table, ok := value.(tomlTable)
	if !ok || len(table) == 0 {
		text, err := tomlText(value, quote)
		return []string{prefix + " = " + text}, err
	}
	var lines []string
	for _, p := range table {
		more, err := dottedLines(prefix+"."+tomlKeyText(p.key, quote), p.value, quote)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// addInside puts a key between the braces of an inline table, after those that are there.
func (d *tomlDoc) addInside(table *tomlNode, keys []string, value any) ([]byte, error) {
	quote := d.quote()
	text, err := tomlText(value, quote)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(keys))
	for i, name := range keys {
		parts[i] = tomlKeyText(name, quote)
	}
	text = strings.Join(parts, ".") + " = " + text
	if len(table.elems) > 0 {
		last := table.elems[len(table.elems)-1].end
		return d.splice(last, last, ", "+text), nil
	}
	open, end := table.value.start+1, table.value.end-1
	if len(bytes.TrimSpace(d.src[open:end])) > 0 { // comments
		end = open
	}
	return d.splice(open, end, " "+text+" "), nil
}

// takeAway removes a key: its lines, or its part of an inline table.
func (d *tomlDoc) takeAway(n *tomlNode) ([]byte, error) {
	if n.kind != tomlLeaf && n.kind != tomlInline {
		return nil, fmt.Errorf("%s is not a value", strings.Join(n.path, "."))
	}
	if n.inline == nil {
		e := d.exprs[n.expr]
		return d.splice(e.start, e.end, ""), nil
	}
	elems := n.inline.elems
	i := slices.IndexFunc(elems, func(s tomlSpan) bool { return s.end == n.value.end })
	switch {
	case i < 0:
		return nil, fmt.Errorf("internal error: %s is not in its table", strings.Join(n.path, "."))
	case i > 0:
		return d.splice(elems[i-1].end, elems[i].end, ""), nil
	case len(elems) > 1:
		return d.splice(elems[0].start, elems[1].start, ""), nil
	}
	return d.splice(n.inline.value.start+1, n.inline.value.end-1, ""), nil
}

// firstDifference names a key in which the trees differ, for a message.
func firstDifference(a, b map[string]any) string {
	diff := tomlDiff(a, b, nil)
	if len(diff) == 0 {
		return "the number of empty tables"
	}
	return strings.Join(diff[0].path, ".")
}
