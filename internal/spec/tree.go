// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// go-toml decodes into Go values without their places. Here its parser's expressions are put together to a
// tree that remembers, so that each finding has its place and a file's problems are found all at once.

// kind is what a value is, in words.
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

// making is how a table or a list came to be. TOML lets only some of them be added to later.
type making int

const (
	byValue   making = iota // a scalar, [ … ] or { … }: closed
	byPath                  // a, of [a.b]: may yet get a header of its own
	byHeader                // [a]
	byHeaders               // [[a]]
	byDots                  // a, of a.b = 1
	forgotten               // where the keys of a misplaced header go
)

// A value is one node of the tree.
type value struct {
	kind    kind
	made    making
	name    string // the key's last part
	key     int    // offset of that part; of an element, of the element
	at      int    // offset of the value
	text    string // of a string what it says, of other scalars the text in the file
	items   []*value
	members []*value // of a table, in the order of the file
	index   map[string]*value
}

func (v *value) find(name string) *value { return v.index[name] }

func (v *value) put(m *value) *value {
	if v.index == nil {
		v.index = make(map[string]*value)
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

// dotted is a dotted key in words. What follows a name for a secret may be one: `token.hunter2 = 1`.
func dotted(parts []part) string {
	names := make([]string, 0, len(parts))
	for i, p := range parts {
		if i == 8 {
			names = append(names, "…")
			break
		}
		names = append(names, clip(p.name))
		if likeSecretKey(p.name) && i+1 < len(parts) {
			names = append(names, mask)
			break
		}
	}
	return strings.Join(names, ".")
}

// A builder makes the tree of one file.
type builder struct {
	rows   []row // of the table
	src    *source
	parser unstable.Parser
	root   *value
	table  *value // what key = value lines go to
	header []part // how that table was named
	secret bool   // its name is one for secrets
	end    int    // of the last expression
}

// tree parses the file. It returns nil where it is no TOML; the error is then noted. Keys and tables that are
// written twice are noted too, and the first of them counts.
func (s *source) tree(rows []row) *value {
	b := &builder{rows: rows, src: s, root: &value{kind: tableKind, made: byHeader}}
	b.table = b.root
	b.parser.Reset(s.data)
	for b.parser.NextExpression() {
		switch e := b.parser.Expression(); e.Kind {
		case unstable.Table:
			b.open(e, false)
		case unstable.ArrayTable:
			b.open(e, true)
		case unstable.KeyValue:
			b.add(b.table, e, b.secret)
			b.end = int(e.Raw.Offset + e.Raw.Length)
		}
	}
	if err := b.parser.Error(); err != nil {
		b.broken(err)
		return nil
	}
	return b.root
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

// open reads [a.b] or, with many, [[a.b]].
func (b *builder) open(e *unstable.Node, many bool) {
	parts := b.parts(e)
	last := parts[len(parts)-1]
	b.end, b.header = last.at.end, parts
	b.secret = b.hide(parts, last.at.end, last.at.end)
	t := b.root
	for i, p := range parts[:len(parts)-1] {
		next := t.find(p.name)
		switch {
		case next == nil:
			next = t.put(&value{kind: tableKind, made: byPath, name: p.name, key: p.at.start, at: p.at.start})
		case next.made == byHeaders:
			next = next.items[len(next.items)-1]
		case next.kind != tableKind || next.made == byValue:
			b.twice(p, next, "["+dotted(parts[:i+1])+"]", "is "+string(next.kind)+" already")
			b.table = &value{kind: tableKind, made: forgotten}
			return
		}
		t = next
	}
	fresh := &value{kind: tableKind, made: byHeader, name: last.name, key: last.at.start, at: last.at.start}
	old := t.find(last.name)
	switch {
	case many && old == nil:
		list := *fresh
		list.kind, list.made = listKind, byHeaders
		list.items = []*value{fresh}
		t.put(&list)
	case many && old.made == byHeaders:
		old.items = append(old.items, fresh)
	case !many && old == nil:
		t.put(fresh)
	case !many && old.kind == tableKind && old.made == byPath:
		old.made, old.key, old.at = byHeader, fresh.key, fresh.at
		fresh = old
	case !many && old.kind == tableKind && old.made == byHeader:
		b.twice(last, old, "["+dotted(parts)+"]", "is written twice")
		fresh = old
	default:
		b.twice(last, old, "["+dotted(parts)+"]", "is "+string(old.kind)+" already")
		fresh.made = forgotten
	}
	b.table = fresh
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
	for i, p := range parts[:len(parts)-1] {
		next := t.find(p.name)
		if next == nil {
			next = t.put(&value{kind: tableKind, made: byDots, name: p.name, key: p.at.start, at: p.at.start})
		} else if next.kind != tableKind || next.made != byDots {
			b.twice(p, next, "key "+show(dotted(parts[:i+1])), "is given already and cannot be added to")
			return
		}
		t = next
	}
	v := b.value(e.Value(), at, secret)
	v.name, v.key = last.name, last.at.start
	if old := t.find(last.name); old != nil {
		b.twice(last, old, "key "+show(dotted(parts)), "is given twice")
		return
	}
	t.put(v)
}

// hide says whether a key is named like one for secrets. What follows that name up to an offset is then not shown;
// behind the key's last part only what lies from the value on.
func (b *builder) hide(parts []part, value, end int) bool {
	for i, p := range parts {
		if !b.secretName(p.name) {
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

// secretName is likeSecretKey that finds no typing errors in our own names: none of them is a mistyped secret word.
func (b *builder) secretName(name string) bool {
	ours := func(r row) bool {
		_, last, _ := cutLast(r.Section)
		return name == r.Name || name == last
	}
	if slices.ContainsFunc(b.rows, ours) {
		return secretKey(name)
	}
	return likeSecretKey(name)
}

// valueStart is where the value begins whose key ends at an offset. Lists have no place of their own in go-toml.
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
	v := &value{key: at, at: at, text: string(n.Data)}
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

func (b *builder) twice(p part, old *value, name, what string) {
	if b.src.full {
		return
	}
	line, _ := b.src.position(old.key)
	fix := "keep one of the two"
	if strings.HasPrefix(name, "[") {
		fix = "put its keys under one " + name
	}
	b.src.addf(p.at.start, fix, "%s %s; first on line %d", name, what, line)
}

// broken notes why the file is no TOML, and what in it must not be shown.
func (b *builder) broken(err error) {
	at := len(b.src.data)
	message := err.Error()
	var parse *unstable.ParserError
	if errors.As(err, &parse) {
		// The highlight is a part of the data: what is left of the capacity says where it begins.
		at, message = min(at, max(0, cap(b.src.data)-cap(parse.Highlight))), parse.Message
	}
	start := b.expressionStart()
	// Quotes that are not closed where they should be turn text into keys: a secret of many lines may go on here.
	spread := func(s span) bool { return bytes.IndexByte(b.src.data[s.start:s.end], '\n') >= 0 }
	if b.secret || slices.ContainsFunc(b.src.secrets, spread) {
		b.src.secrets = append(b.src.secrets, span{start, len(b.src.data)})
	}
	b.src.secrets = append(b.src.secrets, brokenSecrets(b.src.data, start)...)
	if len(b.src.secrets) > 0 { // the parser shows the character at which it stopped
		message = regexp.MustCompile(`:? U\+.*`).ReplaceAllString(message, "")
	}
	at, f := b.syntax(start, at, message)
	b.src.add(at, f)
}

// expressionStart is where the expression begins that the parser could not read.
func (b *builder) expressionStart() int {
	data, at := b.src.data, b.end
	if at > 0 { // a comment may follow the last expression, and the brackets of a header
		for at < len(data) && data[at] != '\n' {
			at++
		}
	}
	for at < len(data) {
		switch data[at] {
		case ' ', '\t', '\r', '\n':
			at++
		case '#':
			for at < len(data) && data[at] != '\n' {
				at++
			}
		default:
			return at
		}
	}
	return len(data)
}
