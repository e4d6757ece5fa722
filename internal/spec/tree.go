// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// go-toml decides whether a file is TOML, but it decodes into Go values without their places, and
// stops at the first fault. So one walk over its parser's expressions builds a tree with places,
// and notes every duplicate key.

// kind is the type of a value, in words.
type kind string

const (
	tableKind  kind = "a table"
	listKind   kind = "a list"
	stringKind kind = "a string"
	boolKind   kind = "a boolean"
	intKind    kind = "an integer"
	floatKind  kind = "a number with a fraction"
	timeKind   kind = "a date or time"
)

// A value is one node of the tree.
type value struct {
	kind    kind
	header  bool   // a table or list of tables with a header of its own
	dots    bool   // the a of a.b = 1
	closed  bool   // a scalar, [ … ] or { … }
	name    string // the key's last part
	key     int    // offset of that part; of an element, of the element
	at      int    // offset of the value
	text    string // the content of a string, the source text of other scalars
	items   []*value
	members []*value // of a table, in the order of the file
	index   map[string]*value
}

func (v *value) find(name string) *value { return v.index[name] }

func (v *value) put(m *value) *value {
	if v.index == nil {
		v.index = map[string]*value{}
	}
	v.index[m.name] = m
	v.members = append(v.members, m)
	return m
}

// A part is one part of a dotted key.
type part struct {
	name string
	at   span
}

// A builder makes the tree of one file.
type builder struct {
	rows   []row // of the table
	src    *source
	header []part // the header that the parser has passed
	secret bool   // the header is named like a secret
	end    int    // of the last expression
}

// tree parses the file. If it is not TOML, tree returns nil and notes the error.
func (s *source) tree(rows []row) *value {
	b := &builder{rows: rows, src: s}
	root := &value{kind: tableKind}
	table := root

	var p unstable.Parser
	p.Reset(s.data)
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.KeyValue {
			b.add(table, e, b.secret)
			b.end = int(e.Raw.Offset + e.Raw.Length)
		} else {
			table = b.open(root, e)
		}
	}

	err := p.Error()
	if err == nil {
		return root
	}
	at := len(s.data)
	var parse *unstable.ParserError
	if errors.As(err, &parse) && cap(parse.Highlight) > 0 {
		at = int(p.Range(parse.Highlight).Offset)
	}
	b.broken(at, err.Error())
	return nil
}

// judge notes go-toml's error for a file whose tree has no fault.
func (s *source) judge() {
	err := toml.Unmarshal(s.data, new(map[string]any))
	var decode *toml.DecodeError
	if !errors.As(err, &decode) {
		return
	}
	line, column := decode.Position() // in bytes
	at := s.lines[line-1] + column - 1
	s.addf(at, "keep one of the two", "invalid TOML: %s", strings.TrimPrefix(decode.Error(), "toml: "))
}

// open returns the table that a [header] or [[header]] begins.
func (b *builder) open(root *value, e *unstable.Node) *value {
	parts := b.parts(e)
	last := parts[len(parts)-1]
	b.header = parts
	b.end = last.at.end
	b.secret = b.hide(parts, last.at.end, last.at.end)

	isList := e.Kind == unstable.ArrayTable
	table := b.into(root, parts, false)
	if table.taken(isList) {
		b.twiceHeader(parts, table)
		if isList || table.kind == listKind {
			return &value{kind: tableKind}
		}
		return table
	}

	table.header = true
	table.key = last.at.start
	if !isList {
		return table
	}
	table.kind = listKind
	item := &value{kind: tableKind, key: table.key, at: table.key}
	table.items = append(table.items, item)
	return item
}

// taken says whether a header cannot begin this table: dotted keys have made it, it has a header
// already, or it is not a list and has keys.
func (v *value) taken(asList bool) bool {
	anotherItem := asList && v.kind == listKind
	return v.dots || v.header && !anotherItem || asList && len(v.members) > 0
}

// into returns the table at the end of a dotted key; it makes missing tables, and within the key
// uses the last table of a list.
func (b *builder) into(v *value, parts []part, dots bool) *value {
	for i, p := range parts {
		if len(v.items) > 0 {
			v = v.items[len(v.items)-1]
		}

		next := v.find(p.name)
		if next == nil {
			next = v.put(&value{
				kind: tableKind,
				dots: dots,
				name: p.name,
				key:  p.at.start,
				at:   p.at.start,
			})
		}

		if next.closed {
			if dots {
				b.twiceKey(parts[:i+1], next)
			} else {
				b.twiceHeader(parts[:i+1], next)
			}
			return &value{kind: tableKind}
		}

		v = next
	}
	return v
}

// twiceKey notes a duplicate key.
func (b *builder) twiceKey(parts []part, old *value) {
	line, _ := b.src.position(old.key)
	const text = "key %q is given twice; first on line %d"
	b.src.addf(parts[len(parts)-1].at.start, "keep one of the two", text, shownName(parts), line)
}

// twiceHeader notes a duplicate header.
func (b *builder) twiceHeader(parts []part, old *value) {
	name := shownName(parts)
	line, _ := b.src.position(old.key)
	b.src.addf(parts[len(parts)-1].at.start,
		"put its keys under one ["+name+"]",
		"[%s] is %s already; first on line %d", name, old.kind, line)
}

// shownName returns a dotted name for a message. The part after a secret's name may be the secret,
// as in token.hunter2 = 1.
func shownName(parts []part) string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
		if secretKey(p.name) {
			break
		}
	}

	return clip(strings.Join(names, "."))
}

func (b *builder) parts(e *unstable.Node) []part {
	var parts []part
	for it := e.Key(); it.Next(); {
		n := it.Node()
		start := int(n.Raw.Offset)
		end := start + int(n.Raw.Length)
		parts = append(parts, part{string(n.Data), span{start, end}})
	}

	return parts
}

// add reads a key and its value into a table.
func (b *builder) add(t *value, e *unstable.Node, secret bool) {
	parts := b.parts(e)
	last := parts[len(parts)-1]
	at := b.valueStart(last.at.end)
	end := int(e.Raw.Offset + e.Raw.Length)
	switch {
	case b.hide(parts, at, end):
		secret = true
	case secret:
		b.hideSpan(parts[0].at.start, end)
	}

	v := b.value(e.Value(), at, secret)
	v.name = last.name
	v.key = last.at.start
	t = b.into(t, parts[:len(parts)-1], true)
	if old := t.find(v.name); old != nil {
		b.twiceKey(parts, old)
		return
	}
	t.put(v)
}

// hide reports whether a key is named like a secret. gpuadm then hides the text after that name up
// to an offset or, if the name is the key's last part, the text from the value on.
func (b *builder) hide(parts []part, value, end int) bool {
	i := slices.IndexFunc(parts, func(p part) bool { return secretKey(p.name) })
	if i < 0 {
		return false
	}
	from := value
	if i+1 < len(parts) {
		from = parts[i].at.end
	} else if from < end && isPath(b.src.data[from:end]) {
		return false
	}

	if from < end {
		b.hideSpan(from, end)
	}
	return true
}

func (b *builder) hideSpan(start, end int) {
	b.src.secrets = append(b.src.secrets, span{start, end})
}

// valueStart returns the offset of the value whose key ends at an offset. go-toml gives lists no
// place of their own.
func (b *builder) valueStart(keyEnd int) int {
	at := keyEnd + bytes.IndexByte(b.src.data[keyEnd:], '=') + 1
	for at < len(b.src.data) && (b.src.data[at] == ' ' || b.src.data[at] == '\t') {
		at++
	}
	return at
}

func (b *builder) value(n *unstable.Node, at int, secret bool) *value {
	if n.Raw.Length > 0 {
		at = int(n.Raw.Offset)
	}
	v := &value{key: at, at: at, text: string(n.Data), closed: true}

	switch n.Kind {
	case unstable.InlineTable:
		v.kind = tableKind
		for it := n.Children(); it.Next(); {
			b.add(v, it.Node(), secret)
		}
	case unstable.Array:
		v.kind = listKind
		for it := n.Children(); it.Next(); {
			v.items = append(v.items, b.value(it.Node(), at, secret))
		}
	case unstable.String:
		v.kind = stringKind
	case unstable.Bool:
		v.kind = boolKind
	case unstable.Integer:
		v.kind = intKind
	case unstable.Float:
		v.kind = floatKind
	default:
		v.kind = timeKind
	}

	return v
}

// broken notes why the parser stopped at an offset, and which text must not be shown.
func (b *builder) broken(at int, message string) {
	data := b.src.data
	before := `^`
	if b.end > 0 { // a comment may follow the last expression, and the brackets of a header
		before += `.*`
	}
	passed := regexp.MustCompile(before + `(?:\s|#.*)*`).Find(data[b.end:])
	start := b.end + len(passed)

	// An unclosed quote makes keys of text: a secret with several lines may continue here.
	hasLines := func(s span) bool { return bytes.IndexByte(data[s.start:s.end], '\n') >= 0 }
	if b.secret || slices.ContainsFunc(b.src.secrets, hasLines) {
		b.hideSpan(start, len(data))
	}
	b.src.secrets = append(b.src.secrets, brokenSecrets(data, start)...)

	at, fault := b.syntax(start, at, message)
	if len(b.src.secrets) > 0 { // the parser shows the character at which it stopped
		fault.What = regexp.MustCompile(`:? U\+.*`).ReplaceAllString(fault.What, "")
	}
	b.src.add(at, fault)
}
