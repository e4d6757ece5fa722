// SPDX-License-Identifier: Apache-2.0

// Package toml edits TOML files: it changes single keys and leaves every other byte, and takes its
// edits out again.
package toml

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

var ErrTooDeep = fmt.Errorf("tables are nested more than %d deep", MaxDepth)

// MaxKeys bounds the keys and headers of a file: the reader's time grows with their square. A
// containerd that says all it knows has 200.
const MaxKeys = 4000

var ErrTooMany = fmt.Errorf("it has more than %d keys and tables", MaxKeys)

// TooMany reports that a file has too many keys and headers to be read, counted by their signs: "="
// also in comments and texts.
func TooMany(data []byte) bool {
	return bytes.Count(data, []byte("="))+bytes.Count(data, []byte("\n[")) > MaxKeys
}

// BOM is accepted before the first key by containerd 1.x (go-toml v1) and rejected by 2.x (go-toml
// v2).
const BOM = "\xef\xbb\xbf"

// MaxDepth bounds tables in tables: no configuration comes near it, and paths cost its square.
const MaxDepth = 100

// Doc is a TOML file with the place of every key and table in its bytes.
type Doc struct {
	src   []byte // as found, byte order mark included
	exprs []expr
	root  *node
	only  [][]string // where root has nodes: at, above and below these paths; nil: everywhere
}

// expr is a header or a key with its value: what has lines of its own.
type expr struct {
	header  bool
	array   bool // [[header]]
	inArray bool // below a [[header]]: its path does not name one place

	start, end int    // whole lines, indentation and line break included
	head, tail int    // without these: from the key (or the bracket) to the end of the value (or the bracket)
	keys       []span // where the last parts of the path are spelt
	value      span

	path    []string // from the top of the file, through all headers
	section int      // the header above it, -1 for none
}

type span struct{ start, end int }

type kind int

const (
	implicit kind = iota // only named by the headers of tables below it
	headed               // has its own [header], or is the top of the file
	dotted               // only named by dotted keys
	inlined              // { … }
	tables               // array of tables
	leaf
)

// node is a table or value in the tree of the file.
type node struct {
	kind   kind
	path   []string
	kids   map[string]*node
	expr   int    // the header's, or that of the line of the value; -1 for the top
	inline *node  // the inline table around it, nil outside of any
	value  span   // of a value or inline table
	elems  []span // of an inline table: each key = value
}

// Values reads the values of a file, checked as strictly as containerd 2.x does.
func Values(data []byte) (map[string]any, error) {
	tree := map[string]any{}
	if TooMany(data) {
		return nil, ErrTooMany
	}
	if err := toml.Unmarshal(bytes.TrimPrefix(data, []byte(BOM)), &tree); err != nil {
		return nil, err
	}
	return tree, nil
}

// Decode reads a file into fields of these types, in any case as programs do.
func Decode(data []byte, into any) error {
	if TooMany(data) {
		return ErrTooMany
	}
	return toml.Unmarshal(bytes.TrimPrefix(data, []byte(BOM)), into)
}

// ErrorPlace is where the parser stopped, 0 if it does not say.
func ErrorPlace(err error) (line, column int) {
	var at *toml.DecodeError
	if errors.As(err, &at) {
		return at.Position()
	}
	return 0, 0
}

// Parse finds the places in a file that Values has accepted.
func Parse(src []byte) (*Doc, error) { return parseFor(src, nil) }

// parseFor is Parse for a caller that only looks up these paths: a file may have a thousand other
// tables.
func parseFor(src []byte, only [][]string) (*Doc, error) {
	most := bytes.Count(src, []byte("=")) + bytes.Count(src, []byte("["))
	d := &Doc{
		src:   src,
		exprs: make([]expr, 0, most),
		root:  &node{kind: headed, kids: map[string]*node{}, expr: -1},
		only:  only,
	}
	base := d.top()
	p := unstable.Parser{}
	p.Reset(src[base:])

	section := -1
	table := d.root     // of the section
	var header []string // of the section
	for p.NextExpression() {
		n := p.Expression()
		var above []string
		if n.Kind == unstable.KeyValue {
			above = table.path
		}
		e := d.newExpr(n, base, above, header)
		d.takeLines(&e, base)
		e.section = section
		if len(table.path)+len(e.keys) > MaxDepth {
			return nil, ErrTooDeep
		}

		line := len(d.exprs)
		if n.Kind == unstable.KeyValue {
			e.inArray = section >= 0 && d.exprs[section].inArray
			d.exprs = append(d.exprs, e)
			if err := d.addValue(table, e, n.Value(), base, line, nil); err != nil {
				return nil, err
			}
			continue
		}

		section = line
		header = e.path
		e.section = section
		d.exprs = append(d.exprs, e)
		var err error
		table, err = d.addHeader(section)
		if err != nil {
			return nil, err
		}
	}

	if err := p.Error(); err != nil {
		return nil, err
	}
	return d, nil
}

// newExpr reads the offsets of a header or key below a table; the parser gives none for arrays and
// for brackets. Its path shares the names of another path where they are the same: a thousand
// headers mostly are.
func (d *Doc) newExpr(n *unstable.Node, base int, above, like []string) expr {
	e := expr{header: n.Kind != unstable.KeyValue, array: n.Kind == unstable.ArrayTable}
	parts := 0
	for it := n.Key(); it.Next(); {
		parts++
	}
	e.keys = make([]span, 0, parts)
	e.path = append(make([]string, 0, len(above)+parts), above...)
	for it := n.Key(); it.Next(); {
		key := it.Node()
		start := base + int(key.Raw.Offset)
		e.keys = append(e.keys, span{start, start + int(key.Raw.Length)})

		i := len(e.path)
		if i < len(like) && like[i] == string(key.Data) {
			e.path = append(e.path, like[i])
		} else {
			e.path = append(e.path, string(key.Data))
		}
	}

	first, last := e.keys[0].start, e.keys[len(e.keys)-1].end
	if !e.header {
		e.head = first
		e.tail = base + int(n.Raw.Offset+n.Raw.Length)
		e.value = span{valueStart(d.src, last), e.tail}
		return e
	}

	e.head = max(base, bytes.LastIndexByte(d.src[:first], '\n')+1)
	e.head += len(indentOf(d.src[e.head:]))
	e.tail = last + bytes.IndexByte(d.src[last:], ']') + 1
	if e.array {
		e.tail++
	}
	return e
}

func (d *Doc) takeLines(e *expr, base int) {
	e.start = max(base, bytes.LastIndexByte(d.src[:e.head], '\n')+1)
	e.end = lineEnd(d.src, e.tail)
}

// wants reports whether the tree shall have a node at a path.
func (d *Doc) wants(path []string) bool {
	if d.only == nil {
		return true
	}
	return slices.ContainsFunc(d.only, func(asked []string) bool {
		return HasPrefix(asked, path) || HasPrefix(path, asked)
	})
}

// addHeader puts the table of a [header] into the tree and returns it.
func (d *Doc) addHeader(expr int) (*node, error) {
	e := &d.exprs[expr]
	at := d.root
	for i, name := range e.path {
		path := e.path[:i+1]
		if !d.wants(path) {
			return &node{path: e.path}, nil
		}
		kid := at.kids[name]
		if kid == nil {
			kid = &node{path: path, kids: map[string]*node{}, expr: -1}
			at.kids[name] = kid
		}
		if kid.kind == leaf || kid.kind == inlined {
			return nil, fmt.Errorf("%s is a value and a table", strings.Join(kid.path, "."))
		}

		last := i == len(e.path)-1
		if last && e.array {
			kid.kind = tables
			kid.expr = expr
		}
		switch {
		case kid.kind == tables:
			// The lines below belong to one element, which a path alone cannot name.
			e.inArray = true
			kid.kids = map[string]*node{}
		case last:
			kid.kind = headed
			kid.expr = expr
		}

		at = kid
	}

	return at, nil
}

// addValue puts a key and its value into the tree, inline tables with all that is in them.
func (d *Doc) addValue(at *node, e expr, n *unstable.Node, base, line int, inline *node) error {
	for i := len(e.path) - len(e.keys); i < len(e.path); i++ {
		name, path := e.path[i], e.path[:i+1]
		if !d.wants(path) {
			return nil
		}

		kid := at.kids[name]
		if i < len(e.path)-1 {
			if kid == nil {
				kid = &node{
					kind:   dotted,
					path:   path,
					kids:   map[string]*node{},
					expr:   -1,
					inline: inline,
				}
				at.kids[name] = kid
			}

			at = kid
			continue
		}

		if kid != nil {
			return fmt.Errorf("%s is defined twice", strings.Join(path, "."))
		}
		kid = &node{
			kind:   leaf,
			path:   path,
			expr:   line,
			inline: inline,
			value:  e.value,
		}
		at.kids[name] = kid
		if n.Kind == unstable.InlineTable {
			return d.addInline(kid, n, base, line)
		}
	}
	return nil
}

func (d *Doc) addInline(table *node, n *unstable.Node, base, line int) error {
	table.kind = inlined
	table.kids = map[string]*node{}
	for it := n.Children(); it.Next(); {
		kv := it.Node()
		if kv.Kind != unstable.KeyValue {
			continue
		}
		e := d.newExpr(kv, base, table.path, nil)
		if len(table.path)+len(e.keys) > MaxDepth {
			return ErrTooDeep
		}

		table.elems = append(table.elems, span{e.head, e.tail})
		if err := d.addValue(table, e, kv.Value(), base, line, table); err != nil {
			return err
		}
	}

	return nil
}

// isLeaf reports whether the node is a plain value; a nil node is none.
func (n *node) isLeaf() bool { return n != nil && n.kind == leaf }

// lookup follows a path through tables; nil if nothing is there.
func (d *Doc) lookup(path []string) *node {
	at := d.root
	for _, name := range path {
		at = at.kids[name]
		if at == nil {
			return nil
		}
	}

	return at
}

// deepest is the last table or value on the path that the file has.
func (d *Doc) deepest(path []string) *node {
	at := d.root
	for _, name := range path {
		kid := at.kids[name]
		if kid == nil {
			return at
		}
		at = kid
	}

	return at
}

// LineOf is the line of the thing at a path or of the nearest above it, 1 for the top.
func (d *Doc) LineOf(path []string) int {
	n := d.deepest(path)
	switch {
	case n.value.end > 0:
		return d.lineAt(n.value.start)
	case n.expr >= 0:
		return d.lineAt(d.exprs[n.expr].head)
	}

	for _, e := range d.exprs {
		if HasPrefix(e.path, n.path) {
			return d.lineAt(e.head)
		}
	}

	return 1
}

func (d *Doc) lineAt(off int) int { return 1 + bytes.Count(d.src[:off], []byte("\n")) }

func (d *Doc) indent(e expr) string { return string(d.src[e.start:e.head]) }

// valueStart skips the white space and the equals sign after a key.
func valueStart(src []byte, keyEnd int) int {
	i := keyEnd + bytes.IndexByte(src[keyEnd:], '=') + 1
	return i + len(indentOf(src[i:]))
}

func lineEnd(src []byte, off int) int {
	if i := bytes.IndexByte(src[off:], '\n'); i >= 0 {
		return off + i + 1
	}
	return len(src)
}

func indentOf(b []byte) string {
	return string(b[:len(b)-len(bytes.TrimLeft(b, " \t"))])
}

// HasPrefix reports whether a path begins with another.
func HasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}
