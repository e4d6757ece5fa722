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
	secret bool   // its name is that of a secret
	end    int    // of the last expression
}

// tree parses the file. If it is no TOML, tree returns nil and notes the error.
func (s *source) tree(rows []row) *value {
	b := &builder{rows: rows, src: s}
	root := &value{kind: tableKind}
	table := root
	var p unstable.Parser
	p.Reset(s.data)
	for p.NextExpression() {
		if e := p.Expression(); e.Kind == unstable.KeyValue {
			b.add(table, e, b.secret)
			b.end = int(e.Raw.Offset + e.Raw.Length)
		} else {
			table = b.open(root, e)
		}
	}
	if err := p.Error(); err != nil {
		at := len(s.data)
		if parse := (*unstable.ParserError)(nil); errors.As(err, &parse) && cap(parse.Highlight) > 0 {
			at = int(p.Range(parse.Highlight).Offset)
		}
		b.broken(at, err.Error())
		return nil
	}
	return root
}

// judge notes go-toml's error for a file whose tree has no fault.
func (s *source) judge() {
	err := toml.Unmarshal(s.data, new(map[string]any))
	if e := (*toml.DecodeError)(nil); errors.As(err, &e) {
		line, column := e.Position() // in bytes
		s.addf(s.lines[line-1]+column-1, "keep one of the two", "invalid TOML: %s", strings.TrimPrefix(e.Error(), "toml: "))
	}
}

// open returns the table that a [header] or [[header]] begins.
func (b *builder) open(root *value, e *unstable.Node) *value {
	parts := b.parts(e)
	last := parts[len(parts)-1]
	b.end, b.header = last.at.end, parts
	b.secret = b.hide(parts, last.at.end, last.at.end)
	list := e.Kind == unstable.ArrayTable
	table := b.into(root, parts, false)
	if table.dots || table.header && !(list && table.kind == listKind) || list && len(table.members) > 0 {
		b.twice(parts, table, false)
		if list || table.kind == listKind {
			table = &value{kind: tableKind}
		}
		return table
	}
	table.header, table.key = true, last.at.start
	if !list {
		return table
	}
	table.kind = listKind
	table.items = append(table.items, &value{kind: tableKind, key: table.key, at: table.key})
	return table.items[len(table.items)-1]
}

// into returns the table at the end of a dotted key; it makes missing tables, and within the key
// uses the last table of a list.
func (b *builder) into(v *value, parts []part, dots bool) *value {
	for i, p := range parts {
		if len(v.items) > 0 {
			v = v.items[len(v.items)-1]
		}
		next := v.find(p.name)
		switch {
		case next == nil:
			next = v.put(&value{kind: tableKind, dots: dots, name: p.name, key: p.at.start, at: p.at.start})
		case next.closed:
			b.twice(parts[:i+1], next, dots)
			return &value{kind: tableKind}
		}
		v = next
	}
	return v
}

// twice notes a duplicate key or header. The part after a secret's name may be the secret, as in
// token.hunter2 = 1.
func (b *builder) twice(parts []part, old *value, key bool) {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
		if secretKey(p.name) {
			break
		}
	}
	name := clip(strings.Join(names, "."))
	line, _ := b.src.position(old.key)
	at := parts[len(parts)-1].at.start
	if key {
		b.src.addf(at, "keep one of the two", "key %q is given twice; first on line %d", name, line)
	} else {
		b.src.addf(at, "put its keys under one ["+name+"]", "[%s] is %s already; first on line %d", name, old.kind, line)
	}
}

func (b *builder) parts(e *unstable.Node) []part {
	var parts []part
	for it := e.Key(); it.Next(); {
		n := it.Node()
		start := int(n.Raw.Offset)
		parts = append(parts, part{string(n.Data), span{start, start + int(n.Raw.Length)}})
	}
	return parts
}

// add reads a key and its value into a table.
func (b *builder) add(t *value, e *unstable.Node, secret bool) {
	parts := b.parts(e)
	last := parts[len(parts)-1]
	at := b.valueStart(last.at.end)
	end := int(e.Raw.Offset + e.Raw.Length)
	if b.hide(parts, at, end) {
		secret = true
	} else if secret {
		b.src.secrets = append(b.src.secrets, span{parts[0].at.start, end})
	}
	v := b.value(e.Value(), at, secret)
	v.name, v.key = last.name, last.at.start
	t = b.into(t, parts[:len(parts)-1], true)
	if old := t.find(v.name); old != nil {
		b.twice(parts, old, true)
		return
	}
	t.put(v)
}

// hide reports whether a key is named like a secret. gpuadm then hides the text after that name up
// to an offset or, if the name is the key's last part, the text from the value on.
func (b *builder) hide(parts []part, value, end int) bool {
	for i, p := range parts {
		if !secretKey(p.name) {
			continue
		}
		from := value
		if i+1 < len(parts) {
			from = p.at.end
		}
		if from < end {
			b.src.secrets = append(b.src.secrets, span{from, end})
		}
		return true
	}
	return false
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
	data, before := b.src.data, `^`
	if b.end > 0 { // a comment may follow the last expression, and the brackets of a header
		before += `.*`
	}
	start := b.end + len(regexp.MustCompile(before+`(?:\s|#.*)*`).Find(data[b.end:]))
	// An unclosed quote makes keys of text: a secret with several lines may continue here.
	spread := func(s span) bool { return bytes.IndexByte(data[s.start:s.end], '\n') >= 0 }
	if b.secret || slices.ContainsFunc(b.src.secrets, spread) {
		b.src.secrets = append(b.src.secrets, span{start, len(data)})
	}
	b.src.secrets = append(b.src.secrets, brokenSecrets(data, start)...)
	at, f := b.syntax(start, at, message)
	if len(b.src.secrets) > 0 { // the parser shows the character at which it stopped
		f.What = regexp.MustCompile(`:? U\+.*`).ReplaceAllString(f.What, "")
	}
	b.src.add(at, f)
}
