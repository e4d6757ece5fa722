// SPDX-License-Identifier: Apache-2.0

package jsonedit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Set returns the text with a value, which is JSON, at a path. What is there is replaced; objects
// that lead there are made. It is written as what is around it is. Parsing proves that nothing else
// has changed.
func (d *Doc) Set(value string, path ...string) ([]byte, error) {
	for i := range path[:len(path)-1] {
		if n := d.find(path[:i+1]); n != nil && !n.object {
			return nil, fmt.Errorf("line %d: %s is no object", d.Line(path[:i+1]...), strings.Join(path[:i+1], "."))
		}
	}
	want, err := decoded([]byte(value))
	if err != nil {
		return nil, fmt.Errorf("internal error: %q: %w", value, err)
	}
	if same(d.Text(path...), []byte(value)) {
		return d.text, nil
	}
	var out []byte
	if n := d.find(path); n != nil {
		out = slices.Concat(d.text[:n.start], []byte(value), d.text[n.end:])
	} else {
		out = d.add(value, path)
	}
	return d.proven(out, path, want)
}

// Delete returns the text without the member at a path, and without the comma that set it apart.
func (d *Doc) Delete(path ...string) ([]byte, error) {
	if d.find(path) == nil {
		return d.text, nil
	}
	of := d.find(path[:len(path)-1])
	i := slices.IndexFunc(of.members, func(m member) bool { return m.key == path[len(path)-1] })
	from, to := of.start+1, of.end-1 // of all that lies between the braces
	switch {
	case i > 0:
		from, to = of.members[i-1].value.end, of.members[i].value.end
	case len(of.members) > 1:
		from, to = of.members[0].start, of.members[1].start
	}
	return d.proven(slices.Concat(d.text[:from], d.text[to:]), path, nil)
}

// proven says whether a text is the document with another value at one path, and nothing else.
func (d *Doc) proven(out []byte, path []string, value any) ([]byte, error) {
	was, err := decoded(d.text)
	if err != nil {
		return nil, err
	}
	is, err := decoded(out)
	if err == nil {
		err = valid(out)
	}
	if err == nil && !reflect.DeepEqual(with(was, path, value), is) {
		err = errors.New("it would change more")
	}
	if err != nil {
		return nil, fmt.Errorf("internal error: the edit of %s: %w", strings.Join(path, "."), err)
	}
	return out, nil
}

// add puts a member where there is none, behind the last one of the object that is there.
func (d *Doc) add(value string, path []string) []byte {
	if d.root == nil { // an empty text
		s := style{eol: "\n", step: "  "}
		return []byte(s.object("", value, path) + "\n")
	}
	n := 0
	for d.find(path[:n+1]) != nil {
		n++
	}
	at, s := d.find(path[:n]), d.style()
	if last := len(at.members) - 1; last >= 0 {
		before := d.gap(at)
		text := "," + before + Quote(path[n]) + ": " + s.nested(lineIndent(before), value, path[n+1:])
		if !strings.Contains(before, "\n") { // on one line
			text = "," + cmp.Or(before, " ") + Quote(path[n]) + ": " + style{}.nested("", value, path[n+1:])
		}
		end := at.members[last].value.end
		return slices.Concat(d.text[:end], []byte(text), d.text[end:])
	}
	return slices.Concat(d.text[:at.start], []byte(s.object(d.indentAt(at.start), value, path[n:])), d.text[at.end:])
}

// gap is the white space between the brace of an object and its first member.
func (d *Doc) gap(n *node) string { return string(d.text[n.start+1 : n.members[0].start]) }

// style is how a document sets its members apart; the zero style is all on one line.
type style struct{ eol, step string }

// style tells a document's style from its first member.
func (d *Doc) style() style {
	if len(d.root.members) == 0 {
		return style{eol: "\n", step: "  "}
	}
	gap := d.gap(d.root)
	if !strings.Contains(gap, "\n") {
		return style{}
	}
	s := style{eol: "\n", step: lineIndent(gap)}
	if strings.Contains(gap, "\r\n") {
		s.eol = "\r\n"
	}
	return s
}

// object is an object of one member, or of one that holds one, and so on down the path. indent is
// that of its line.
func (s style) object(indent, value string, path []string) string {
	if s.eol == "" {
		return "{" + Quote(path[0]) + ": " + s.nested("", value, path[1:]) + "}"
	}
	inner := indent + s.step
	return "{" + s.eol + inner + Quote(path[0]) + ": " + s.nested(inner, value, path[1:]) + s.eol + indent + "}"
}

func (s style) nested(indent, value string, path []string) string {
	if len(path) == 0 {
		return value
	}
	return s.object(indent, value, path)
}

// indentAt is the indentation of the line that an offset lies in.
func (d *Doc) indentAt(at int) string {
	line := d.text[bytes.LastIndexByte(d.text[:at], '\n')+1:]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// lineIndent is what follows the last line break of white space.
func lineIndent(gap string) string { return gap[strings.LastIndexByte(gap, '\n')+1:] }

// Quote returns a string as JSON, for Set.
func Quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // a path with & stays one that people can read
	_ = e.Encode(s)        // strings can be encoded
	return strings.TrimSuffix(b.String(), "\n")
}

// A Change is a value that an edit made, replaced or took away; nil where there was or is none.
type Change struct {
	Path     []string
	Old, New []byte // as text
}

// String is the change's path as people write it: features.cdi.
func (c Change) String() string { return strings.Join(c.Path, ".") }

// Changes lists what an edit changed, in the order of the new text. Objects are looked into, lists
// are values.
func Changes(before, after *Doc) []Change { return changes(before, after, nil) }

func changes(before, after *Doc, at []string) (list []Change) {
	keys := after.Keys(at...)
	for _, key := range before.Keys(at...) {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		path := append(slices.Clone(at), key)
		old, is := before.Text(path...), after.Text(path...)
		switch {
		case same(old, is):
		case after.IsObject(path...) && (old == nil || before.IsObject(path...)) && len(after.Keys(path...)) > 0:
			list = append(list, changes(before, after, path)...)
		default:
			list = append(list, Change{path, old, is})
		}
	}
	return list
}

// TakeOut takes an edit (before → after) out of found, which was changed since, value by value. A
// value that is as the edit left it becomes what it was; one that is gone, or is what it was,
// counts as taken out; any other stays, and left names it. An object that the edit brought, and
// that holds nothing any more, goes too. keep says why a change stays all the same; nil: none does.
func TakeOut(before, after, found []byte, keep func(is *Doc, c Change) string) (rest []byte, left []string, err error) {
	var docs [3]*Doc
	for i, text := range [][]byte{before, after, found} {
		if docs[i], err = Parse(text); err != nil {
			return nil, nil, err
		}
	}
	was, became, is := docs[0], docs[1], docs[2]
	due := Changes(was, became)
	for _, c := range due {
		now := is.Text(c.Path...)
		why := ""
		switch {
		case same(now, c.New) && keep != nil:
			why = keep(is, c)
		case same(now, c.New), now == nil, same(now, c.Old):
		case c.New == nil:
			why = fmt.Sprintf("%s is %s, gpuadm had removed it", c, now)
		default:
			why = fmt.Sprintf("%s is %s (line %d), gpuadm had set %s", c, now, is.Line(c.Path...), c.New)
		}
		if why != "" {
			left = append(left, why)
		} else if same(now, c.New) {
			if is, err = is.back(was, c); err != nil {
				return nil, nil, err
			}
		}
	}
	if before == nil && bytes.Equal(bytes.Join(bytes.Fields(is.text), nil), []byte("{}")) {
		return nil, left, nil
	}
	return is.text, left, nil
}

// back reverts one change, and removes the objects that it had added and that are empty now.
func (d *Doc) back(was *Doc, c Change) (*Doc, error) {
	if c.Old != nil {
		if c.New == nil && len(c.Path) > 1 && !d.IsObject(c.Path[:len(c.Path)-1]...) {
			return d, nil // what it was part of is gone
		}
		return parsed(d.Set(string(c.Old), c.Path...))
	}
	d, err := parsed(d.Delete(c.Path...))
	for n := len(c.Path) - 1; n > 0 && err == nil; n-- {
		at := c.Path[:n]
		if was.Text(at...) != nil || !d.IsObject(at...) || len(d.Keys(at...)) > 0 {
			break
		}
		d, err = parsed(d.Delete(at...))
	}
	return d, err
}

func parsed(text []byte, err error) (*Doc, error) {
	if err != nil {
		return nil, err
	}
	return Parse(text)
}
