// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package jsonedit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// A Change is a value that an edit made, replaced or took away; nil where there was or is none.
type Change struct {
	Path     []string
	Old, New []byte // as text
}

// String is the change's path as people write it: features.cdi.
func (c Change) String() string { return strings.Join(c.Path, ".") }

// Changes lists what an edit changed, in the order of the new text. Objects are looked into, lists are values.
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

// TakeOut takes an edit (before → after) out of found, which was changed since, value by value. A value that is as the edit left it
// becomes what it was; one that is gone, or is what it was, counts as taken out; any other stays, and left names it. An object that
// the edit brought, and that holds nothing any more, goes too. keep says why a change stays all the same; nil: none does.
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
