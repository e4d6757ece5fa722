// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// TakeOut takes our edit of a TOML file (before → after) out of found, which someone else changed since. It succeeds
// only when our edit still stands there and parsing proves that the result is found without it and nothing else:
// what others changed stays. It gives nil when we made the file and nothing else is in it.
func TakeOut(before, after, found []byte) ([]byte, error) {
	if bytes.Equal(found, after) {
		return before, nil
	}
	u, err := newUndo(before, after, found)
	if err != nil {
		return nil, fmt.Errorf("cannot take out our edit: %w", err)
	}
	if err := u.stands(); err != nil {
		return nil, fmt.Errorf("cannot take out our edit: %w", err)
	}
	want, err := u.want()
	if err != nil {
		return nil, fmt.Errorf("cannot take out our edit: %w", err)
	}
	// By lines first, which brings back every byte; by keys where the file was written anew.
	for _, way := range []func() ([]byte, error){u.byLines, u.byKeys} {
		out, wayErr := way()
		if wayErr != nil {
			err = wayErr
			continue
		}
		got, parseErr := tomlTree(out)
		switch {
		case parseErr != nil:
			err = fmt.Errorf("the result would not parse: %w", parseErr)
		case !tomlEqual(got, want):
			err = fmt.Errorf("the result would change %s", firstDifference(want, got))
		case before == nil && len(bytes.TrimSpace(out)) == 0:
			return nil, nil
		default:
			return out, nil
		}
	}
	return nil, fmt.Errorf("cannot take out our edit: %w", err)
}

// tomlUndo is an edit of ours and the file it is to be taken out of.
type tomlUndo struct {
	before, after, found []byte
	was, became, is      map[string]any
	changes              []tomlChange
	made                 [][]string // tables that our edit brought, outer ones first
}

func newUndo(before, after, found []byte) (*tomlUndo, error) {
	u := &tomlUndo{before: before, after: after, found: found}
	for _, f := range []struct {
		data []byte
		into *map[string]any
		what string
	}{{before, &u.was, "the file before our edit"}, {after, &u.became, "the file after our edit"}, {found, &u.is, "the file as it is now"}} {
		tree, err := tomlTree(f.data)
		if err == nil && tomlDepthOf(tree) > tomlDepth {
			err = errTooDeep
		}
		if err != nil {
			line, _ := tomlErrorLine(err)
			return nil, fmt.Errorf("%s is not valid TOML: line %d: %w", f.what, line, err)
		}
		*f.into = tree
	}
	u.changes = tomlDiff(u.was, u.became, nil)
	u.made = newTables(u.was, u.became, nil)
	if len(u.changes) == 0 {
		return nil, errors.New("it changed no key")
	}
	return u, nil
}

// newTables lists the tables of b that a does not have.
func newTables(a, b map[string]any, at []string) [][]string {
	var out [][]string
	for _, p := range sortedTable(b) {
		table, ok := p.value.(map[string]any)
		if !ok {
			continue
		}
		path := append(slices.Clone(at), p.key)
		old, had := a[p.key].(map[string]any)
		if !had {
			out = append(out, path)
		}
		out = append(out, newTables(old, table, path)...)
	}
	return out
}

// stands says whether all that we wrote is still as we wrote it.
func (u *tomlUndo) stands() error {
	for _, c := range u.changes {
		now := valueAt(u.is, c.path)
		if c.new == nil && now == nil || now != nil && c.new != nil && tomlEqual(now, c.new) {
			continue
		}
		return u.notOurs(c, now)
	}
	for _, path := range u.made {
		// Half a runtime is worse than one too many: an entry that somebody added to is theirs now.
		if len(path) < 2 || path[len(path)-2] != "runtimes" {
			continue
		}
		ours, _ := valueAt(u.became, path).(map[string]any)
		now, _ := valueAt(u.is, path).(map[string]any)
		if diff := tomlDiff(ours, now, path); len(diff) > 0 {
			return u.notOurs(tomlChange{path: diff[0].path}, diff[0].new)
		}
	}
	return nil
}

func (u *tomlUndo) notOurs(c tomlChange, now any) error {
	name := showPath(c.path)
	if now == nil {
		return fmt.Errorf("it no longer stands: %s is gone", name)
	}
	line := 1
	if d, err := parseTOML(u.found); err == nil {
		line = d.lineOf(c.path)
	}
	switch {
	case c.old != nil && tomlEqual(now, c.old):
		return fmt.Errorf("it no longer stands: %s is %s again (line %d)", name, show(now), line)
	case c.new == nil:
		return fmt.Errorf("it is no longer ours alone: someone added %s (line %d)", name, line)
	}
	return fmt.Errorf("it is no longer ours: %s is %s (line %d), we wrote %s", name, show(now), line, show(c.new))
}

func valueAt(t map[string]any, path []string) any {
	for _, name := range path[:len(path)-1] {
		t, _ = t[name].(map[string]any)
	}
	return t[path[len(path)-1]]
}

// want is what found must parse to without our edit.
func (u *tomlUndo) want() (map[string]any, error) {
	var ops []tomlOp
	for _, c := range u.changes {
		ops = append(ops, tomlOp{c.path, c.old})
	}
	out, err := applyOps(u.is, ops)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Backward(u.made) {
		if t, ok := valueAt(out, path).(map[string]any); ok && len(t) == 0 {
			forgetExactly(out, path)
		}
	}
	if _, ours := u.was["version"]; !ours && u.became["version"] != nil && len(out) > 0 {
		path := []string{"version"}
		d, err := parseTOML(u.found)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("version (line %d) is ours, but what others added is read by it", d.lineOf(path))
	}
	return out, nil
}

func forgetExactly(t map[string]any, path []string) {
	for _, name := range path[:len(path)-1] {
		t, _ = t[name].(map[string]any)
	}
	delete(t, path[len(path)-1])
}

// byKeys takes our keys out one by one, wherever they stand now.
func (u *tomlUndo) byKeys() ([]byte, error) {
	old, err := parseTOML(u.before)
	if err != nil {
		return nil, err
	}
	out := u.found
	for _, c := range u.changes {
		d, err := parseTOML(out)
		if err != nil {
			return nil, err
		}
		if out, err = d.revert(c, old); err != nil {
			return nil, err
		}
	}
	for _, path := range slices.Backward(u.made) {
		d, err := parseTOML(out)
		if err != nil {
			return nil, err
		}
		if out, err = d.dropEmpty(path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// revert turns one change back; a former value comes back letter by letter.
func (d *tomlDoc) revert(c tomlChange, old *tomlDoc) ([]byte, error) {
	n := d.lookup(c.path)
	_, table := c.new.(map[string]any)
	switch was := old.lookup(c.path); {
	case c.new == nil:
		if _, ok := c.old.(map[string]any); ok {
			return d.add(c.path, tomlTable{})
		}
		return d.add(c.path, c.old)
	case c.old == nil && table:
		return d.src, nil // an empty table: dropEmpty's
	case n == nil:
		return nil, fmt.Errorf("%s is out of reach", showPath(c.path))
	case c.old == nil:
		return d.takeAway(n)
	case n.kind != tomlLeaf || was == nil || was.kind != tomlLeaf:
		return nil, fmt.Errorf("%s is not a plain value", showPath(c.path))
	default:
		return d.splice(n.value.start, n.value.end, string(old.src[was.value.start:was.value.end])), nil
	}
}

// dropEmpty takes the header or braces of a table away that holds nothing, and the empty line that set it apart.
func (d *tomlDoc) dropEmpty(path []string) ([]byte, error) {
	n := d.lookup(path)
	switch {
	case n == nil || len(n.kids) > 0:
		return d.src, nil
	case n.kind == tomlInline:
		return d.takeAway(n)
	case n.kind != tomlHeader:
		return d.src, nil
	}
	e := d.exprs[n.expr]
	start := e.start
	last := e.end == len(d.src) || len(bytes.TrimSpace(d.src[e.end:lineEnd(d.src, e.end)])) == 0
	if last && d.blankBefore(start) {
		start = d.lineBefore(start)
	}
	return d.splice(start, e.end, ""), nil
}
