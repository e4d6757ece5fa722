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

	"github.com/gpuadm/gpuadm/internal/lines"
)

// Set returns the text with a value, which is JSON, at a path. It replaces what is there, makes the
// objects that lead there, and writes in the style of the lines around. Parsing proves that nothing
// else has changed.
func (d *Doc) Set(value string, path ...string) ([]byte, error) {
	for i := range path[:len(path)-1] {
		above := path[:i+1]
		if n := d.find(above); n != nil && !n.object {
			return nil, fmt.Errorf("line %d: %s is not an object", d.Line(above...), strings.Join(above, "."))
		}
	}

	want, err := decoded([]byte(value))
	if err != nil {
		return nil, fmt.Errorf("internal error: %q: %w", value, err)
	}
	if same(d.Text(path...), []byte(value)) {
		return d.text, nil
	}

	expect := func(was any) any { return with(was, path, want) }
	n := d.find(path)
	if n == nil {
		return d.proven(d.add(value, path), path, expect)
	}
	return d.proven(d.replace(n.start, n.end, value), path, expect)
}

// replace returns the text with another one in the place of the bytes from start to end.
func (d *Doc) replace(start, end int, text string) []byte {
	return slices.Concat(d.text[:start], []byte(text), d.text[end:])
}

// Delete returns the text without the member at a path, and without the comma that set it apart.
func (d *Doc) Delete(path ...string) ([]byte, error) {
	if d.find(path) == nil {
		return d.text, nil
	}

	object := d.find(path[:len(path)-1])
	key := path[len(path)-1]
	members := object.members
	i := slices.IndexFunc(members, func(m member) bool { return m.key == key })
	var out []byte
	switch {
	case i > 0:
		out = d.replace(members[i-1].value.end, members[i].value.end, "")
	case len(members) > 1:
		out = d.replace(members[0].start, members[1].start, "")
	default: // all that lies between the braces
		out = d.replace(object.start+1, object.end-1, "")
	}

	expect := func(was any) any { return without(was, path) }
	return d.proven(out, path, expect)
}

// proven returns a text if it is the document with what expect changes of it, which is the value at
// a path, and nothing else has changed.
func (d *Doc) proven(out []byte, path []string, expect func(was any) any) ([]byte, error) {
	was, err := decoded(d.text)
	if err != nil {
		return nil, err
	}
	is, err := decoded(out)
	if err == nil {
		err = valid(out)
	}
	if err == nil && !reflect.DeepEqual(expect(was), is) {
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

	depth := 0 // of the object that is there
	for d.find(path[:depth+1]) != nil {
		depth++
	}
	object := d.find(path[:depth])
	key := path[depth]
	below := path[depth+1:]
	s := d.style()
	last := len(object.members) - 1
	if last < 0 {
		return d.replace(object.start, object.end, s.object(d.indentAt(object.start), value, path[depth:]))
	}

	before := d.gap(object)
	text := "," + before + Quote(key) + ": " + s.nested(lineIndent(before), value, below)
	if !strings.Contains(before, "\n") { // on one line
		text = "," + cmp.Or(before, " ") + Quote(key) + ": " + style{}.nested("", value, below)
	}
	end := object.members[last].value.end
	return d.replace(end, end, text)
}

// gap is the white space between the brace of an object and its first member.
func (d *Doc) gap(n *node) string {
	return string(d.text[n.start+1 : n.members[0].start])
}

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

// object writes an object with one member for each name of the path, each inside the one before.
// indent is that of its line.
func (s style) object(indent, value string, path []string) string {
	if s.eol == "" {
		return "{" + Quote(path[0]) + ": " + s.nested("", value, path[1:]) + "}"
	}
	inner := indent + s.step
	member := Quote(path[0]) + ": " + s.nested(inner, value, path[1:])
	return "{" + s.eol + inner + member + s.eol + indent + "}"
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
		old, now := before.Text(path...), after.Text(path...)
		isFilled := after.IsObject(path...) && len(after.Keys(path...)) > 0
		wasObject := old == nil || before.IsObject(path...)
		switch {
		case same(old, now):
		case isFilled && wasObject:
			list = append(list, changes(before, after, path)...)
		default:
			list = append(list, Change{path, old, now})
		}
	}

	return list
}

// TakeOut takes an edit (before → after) out of found, which was changed since, value by value. A
// value that is as the edit left it becomes what it was. A value that is gone, or is what it was,
// counts as taken out. Any other value stays, and left names it. An object that the edit
// brought, and that holds nothing any more, goes too. keep says why a change stays all the same;
// nil: none does.
func TakeOut(
	before, after, found []byte,
	keep func(is *Doc, c Change) string,
) (rest []byte, left []string, err error) {
	was, err := Parse(before)
	if err != nil {
		return nil, nil, err
	}
	became, err := Parse(after)
	if err != nil {
		return nil, nil, err
	}
	is, err := Parse(found)
	if err != nil {
		return nil, nil, err
	}

	for _, c := range Changes(was, became) {
		now := is.Text(c.Path...)
		why := ""
		switch {
		case same(now, c.New):
			if keep != nil {
				why = keep(is, c)
			}
			if why != "" {
				break
			}
			is, err = is.revert(was, c)
			if err != nil {
				return nil, nil, err
			}
		case now == nil, same(now, c.Old):
		case c.New == nil:
			why = fmt.Sprintf("%s is %s, gpuadm had removed it", c, now)
		default:
			line := is.Line(c.Path...)
			why = fmt.Sprintf("%s is %s (line %d), gpuadm had set %s", c, now, line, c.New)
		}

		if why != "" {
			left = append(left, why)
		}
	}

	isEmpty := bytes.Equal(bytes.Join(bytes.Fields(is.text), nil), []byte("{}"))
	if before == nil && isEmpty {
		return nil, left, nil
	}
	means := func(exact []byte) bool { return valid(exact) == nil && same(exact, is.text) }
	return lines.Exact(before, after, found, is.text, means), left, nil
}

// revert reverts one change, and removes the objects that it had added and that are empty now.
func (d *Doc) revert(was *Doc, c Change) (*Doc, error) {
	if c.Old == nil {
		return d.remove(was, c.Path)
	}

	object := c.Path[:len(c.Path)-1]
	wasRemoved := c.New == nil
	if wasRemoved && len(object) > 0 && !d.IsObject(object...) {
		return d, nil // the object around it is gone
	}
	return parsed(d.Set(string(c.Old), c.Path...))
}

// remove removes what a change had added, and then, from the inside out, the objects around it that
// are empty and that was does not have. One that was has, empty too, gets its text back.
func (d *Doc) remove(was *Doc, path []string) (*Doc, error) {
	d, err := parsed(d.Delete(path...))
	for n := len(path) - 1; n > 0 && err == nil; n-- {
		object := path[:n]
		isEmpty := d.IsObject(object...) && len(d.Keys(object...)) == 0
		if isEmpty && was.IsObject(object...) && len(was.Keys(object...)) == 0 {
			now := d.find(object)
			return parsed(d.replace(now.start, now.end, string(was.Text(object...))), nil)
		}
		if !isEmpty || was.Text(object...) != nil {
			break
		}
		d, err = parsed(d.Delete(object...))
	}

	return d, err
}

func parsed(text []byte, err error) (*Doc, error) {
	if err != nil {
		return nil, err
	}
	return Parse(text)
}
