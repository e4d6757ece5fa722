// SPDX-FileCopyrightText: The gpuadm authors
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

// go-toml says whether a file is TOML. It decodes into Go values without their places, so the places come from a second walk.

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

// A value is one node of the tree.
type value struct {
	kind    kind
	header  bool   // a table or list of tables with a header of its own
	dots    bool   // a, of a.b = 1
	name    string // the key's last part
	key     int    // offset of that part; of an element, of the element
	at      int    // offset of the value
	text    string // of a string what it says, of other scalars the text in the file
	items   []*value
	members []*value // of a table, in the order of the file
}

func (v *value) find(name string) *value {
	for _, m := range v.members {
		if m.name == name {
			return m
		}
	}
	return nil
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
	secret bool // the header's name is one for secrets
}

// tree parses the file. It returns nil where it is no TOML; the error is then noted.
func (s *source) tree(rows []row) *value {
	b := &builder{rows: rows, src: s}
	if err := toml.Unmarshal(s.data, new(map[string]any)); err != nil {
		b.broken(err)
		return nil
	}
	root := &value{kind: tableKind}
	table := root
	var p unstable.Parser
	p.Reset(s.data)
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			parts := b.parts(e)
			b.secret = b.hide(parts, parts[len(parts)-1].at.end, parts[len(parts)-1].at.end)
			table = root.into(parts, false)
			table.header, table.key = true, parts[len(parts)-1].at.start
			if e.Kind == unstable.ArrayTable {
				table.kind = listKind
				table.items = append(table.items, &value{kind: tableKind, key: table.key, at: table.key})
				table = table.items[len(table.items)-1]
			}
		case unstable.KeyValue:
			b.add(table, e, b.secret)
		}
	}
	return root
}

// into is the table at the end of some parts, made where it is missing; of a list of tables, but for the last part, its last one.
func (v *value) into(parts []part, dots bool) *value {
	for _, p := range parts {
		if len(v.items) > 0 {
			v = v.items[len(v.items)-1]
		}
		next := v.find(p.name)
		if next == nil {
			next = &value{kind: tableKind, dots: dots, name: p.name, key: p.at.start, at: p.at.start}
			v.members = append(v.members, next)
		}
		v = next
	}
	return v
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
	t = t.into(parts[:len(parts)-1], true)
	t.members = append(t.members, v)
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

// broken notes why the file is no TOML. From the first name for a secret on nothing of the file is shown.
func (b *builder) broken(err error) {
	at, message := len(b.src.data), strings.TrimPrefix(err.Error(), "toml: ")
	if e := (*toml.DecodeError)(nil); errors.As(err, &e) {
		line, column := e.Position() // in bytes
		at = b.src.lines[min(line, len(b.src.lines))-1] + column - 1
	}
	if b.src.secrets = brokenSecrets(b.src.data, 0); len(b.src.secrets) > 0 { // the parser shows what it stopped at
		message = regexp.MustCompile(`(:? U\+|key |table ).*`).ReplaceAllString(message, "")
	}
	b.src.add(at, b.syntax(at, message))
}
