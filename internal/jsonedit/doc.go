// SPDX-License-Identifier: Apache-2.0

// Package jsonedit changes single values of a JSON object as text: everything else keeps its bytes,
// order, indentation and large numbers. The standard library reads and judges JSON, and cannot edit
// it in place.
package jsonedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"
)

// deepest is how deep a document may be nested. Configuration files are nested a few deep.
const deepest = 100

// A Doc is the text of one JSON object, and the places of its values. An empty text is an empty
// object.
type Doc struct {
	text []byte
	root *node
}

// node is a value: text[start:end].
type node struct {
	start, end int
	object     bool
	members    []member
}

type member struct {
	start int // of the key
	key   string
	value *node
}

// Parse reads one object. Two members of one name are refused: readers differ in which of them
// counts.
func Parse(text []byte) (*Doc, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return &Doc{text: text}, nil
	}
	if err := valid(text); err != nil {
		return nil, err
	}

	p := parser{text: text}
	root, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if !root.object {
		return nil, errors.New("it is not a JSON object")
	}
	return &Doc{text, root}, nil
}

// valid says where a text is not JSON.
func valid(text []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(text, &v)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("line %d: %w", lineAt(text, min(int(syntax.Offset), len(text))), err)
	}
	return err
}

// lineAt returns the line, from 1, that an offset lies in.
func lineAt(text []byte, offset int) int {
	return 1 + bytes.Count(text[:offset], []byte("\n"))
}

// parser places the parts of valid JSON.
type parser struct {
	text []byte
	at   int
}

// blanks passes over white space, and over the comma or colon that a parser of valid text need not
// tell apart.
func (p *parser) blanks() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n,:", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *parser) value(depth int) (*node, error) {
	if depth > deepest {
		return nil, fmt.Errorf("it is nested more than %d deep", deepest)
	}

	p.blanks()
	n := &node{start: p.at, object: p.text[p.at] == '{'}
	var err error
	if n.object {
		err = p.object(n, depth)
	} else {
		err = p.read(new(json.RawMessage))
	}

	n.end = p.at
	return n, err
}

func (p *parser) object(n *node, depth int) error {
	p.at++
	for p.blanks(); p.text[p.at] != '}'; p.blanks() {
		m := member{start: p.at}
		if err := p.read(&m.key); err != nil {
			return err
		}
		if n.member(m.key) != nil {
			return fmt.Errorf("line %d: %q is there twice", lineAt(p.text, m.start), m.key)
		}
		var err error
		m.value, err = p.value(depth + 1)
		if err != nil {
			return err
		}
		n.members = append(n.members, m)
	}

	p.at++
	return nil
}

// read passes over a key, or a value that is not an object, and decodes it.
func (p *parser) read(into any) error {
	d := json.NewDecoder(bytes.NewReader(p.text[p.at:]))
	err := d.Decode(into)
	p.at += int(d.InputOffset())
	return err
}

// member is the value of an object's member, nil if there is none.
func (n *node) member(key string) *node {
	if n == nil {
		return nil
	}
	for _, m := range n.members {
		if m.key == key {
			return m.value
		}
	}

	return nil
}

// find returns the value at a path, nil if there is none.
func (d *Doc) find(path []string) *node {
	n := d.root
	for _, key := range path {
		n = n.member(key)
	}
	return n
}

// Text returns the text of the value at a path, nil if there is none.
func (d *Doc) Text(path ...string) []byte {
	n := d.find(path)
	if n == nil {
		return nil
	}
	return d.text[n.start:n.end]
}

// Keys returns the names of the members of the object at a path, in their order; none if there is
// no object.
func (d *Doc) Keys(path ...string) (keys []string) {
	n := d.find(path)
	if n == nil {
		return nil
	}
	for _, m := range n.members {
		keys = append(keys, m.key)
	}
	return keys
}

// IsObject reports whether the value at a path is an object.
func (d *Doc) IsObject(path ...string) bool {
	n := d.find(path)
	return n != nil && n.object
}

// Line returns the line, from 1, of the value at a path.
func (d *Doc) Line(path ...string) int {
	n := d.find(path)
	if n == nil {
		return 1
	}
	return lineAt(d.text, n.start)
}

// same reports whether two texts mean the same value. Numbers are compared by their text: no digit
// may be lost.
func same(a, b []byte) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	valueA, errA := decoded(a)
	valueB, errB := decoded(b)
	return errA == nil && errB == nil && reflect.DeepEqual(valueA, valueB)
}

func decoded(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	if errors.Is(err, io.EOF) {
		return map[string]any{}, nil // an empty text is an empty object
	}
	return v, err
}

// with is the decoded document with a value at a path; nil is null. with makes the objects that lead
// there.
func with(tree any, path []string, value any) any {
	out := copied(tree)
	if len(path) > 1 {
		value = with(out[path[0]], path[1:], value)
	}
	out[path[0]] = value
	return out
}

// without is the decoded document without the value at a path.
func without(tree any, path []string) any {
	out := copied(tree)
	if len(path) > 1 {
		out[path[0]] = without(out[path[0]], path[1:])
	} else {
		delete(out, path[0])
	}
	return out
}

// copied is a copy of a decoded object; an empty one of anything else.
func copied(tree any) map[string]any {
	out := map[string]any{}
	old, _ := tree.(map[string]any)
	maps.Copy(out, old)
	return out
}
