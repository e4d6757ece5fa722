// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// FormTOML is what the journal calls the form of files whose edits TakeOut takes out.
const FormTOML = "toml"

// TakeOut takes our edit of a TOML file (before → after) out of found, which was changed outside gpuadm since, key by key. A key
// that is as we wrote it becomes what it was; one that is gone, or is what it was, counts as taken out; any other value stays, and
// left names it. Parsing proves that rest is found without what was taken out and nothing else. rest is nil when we made the file
// and nothing else is in it.
func TakeOut(before, after, found []byte) (rest []byte, left []string, err error) {
	switch {
	case bytes.Equal(found, after):
		return before, nil, nil
	case bytes.Equal(found, before), bytes.Equal(before, after):
		return found, nil, nil
	}
	u, err := newTakeOut(before, after, found)
	if err != nil {
		return nil, nil, err
	}
	u.decide()
	rest, err = u.rest()
	if before == nil && len(bytes.TrimSpace(rest)) == 0 {
		rest = nil
	}
	return rest, u.left, err
}

// tomlTakeOut is an edit of ours and the file it is to be taken out of.
type tomlTakeOut struct {
	before, after, found []byte
	was, became, is      map[string]any
	doc                  *tomlDoc     // found, for its lines
	changes              []tomlChange // our edit
	made                 [][]string   // tables that our edit brought, outer ones first
	due                  []tomlChange // what of our edit is to be turned back
	left                 []string
}

func newTakeOut(before, after, found []byte) (*tomlTakeOut, error) {
	u := &tomlTakeOut{before: before, after: after, found: found}
	for _, f := range []struct {
		data []byte
		into *map[string]any
		when string
	}{{found, &u.is, ""}, {before, &u.was, "before gpuadm edited it "}, {after, &u.became, "as gpuadm wrote it "}} {
		tree, err := tomlTree(f.data)
		if err == nil && tomlDepthOf(tree) > tomlDepth {
			err = errTooDeep
		}
		if err != nil {
			line, _ := tomlErrorLine(err)
			return nil, fmt.Errorf("%sit is not valid TOML: line %d: %s", f.when, line, strings.TrimPrefix(err.Error(), "toml: "))
		}
		*f.into = tree
	}
	u.changes = tomlDiff(u.was, u.became, nil)
	u.made = newTables(u.was, u.became, nil)
	var err error
	u.doc, err = parseTOML(found)
	return u, err
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

// decide says what of our edit is turned back, and what stays.
func (u *tomlTakeOut) decide() {
	kept := u.changedEntries()
	for _, c := range u.changes {
		if slices.ContainsFunc(kept, func(entry []string) bool { return hasPrefix(c.path, entry) }) {
			continue
		}
		now := valueAt(u.is, c.path)
		_, isTable := now.(map[string]any)
		_, wasEmptyTable := c.new.(map[string]any)
		switch {
		case now == nil && c.new == nil && u.hasParent(c.path), now != nil && c.new != nil && tomlEqual(now, c.new):
			u.due = append(u.due, c)
		case now == nil, c.old != nil && tomlEqual(now, c.old), isTable && wasEmptyTable:
		case c.new == nil:
			u.stays(c.path, "is "+show(now), ", gpuadm had removed it")
		default:
			u.stays(c.path, "is "+show(now), ", gpuadm had set "+show(c.new))
		}
	}
	u.keepDefault()
	u.keepVersion()
}

// stays notes what is left, how it is found, and why that is so.
func (u *tomlTakeOut) stays(path []string, is, why string) {
	u.left = append(u.left, fmt.Sprintf("%s %s (line %d)%s", showPath(path), is, u.doc.lineOf(path), why))
}

// hasParent says whether the table around a key is there: half an entry is not brought back.
func (u *tomlTakeOut) hasParent(path []string) bool {
	if len(path) == 1 {
		return true
	}
	_, ok := valueAt(u.is, path[:len(path)-1]).(map[string]any)
	return ok
}

// entries are the runtimes that our edit brought, as they are found.
func (u *tomlTakeOut) entries() (paths [][]string) {
	for _, path := range u.made {
		if _, there := valueAt(u.is, path).(map[string]any); there && len(path) > 2 && path[len(path)-2] == "runtimes" {
			paths = append(paths, path)
		}
	}
	return paths
}

// changedEntries are the runtimes of ours that have keys of others by now. Half a runtime is worse than one too many, so such an
// entry stays whole.
func (u *tomlTakeOut) changedEntries() (kept [][]string) {
	for _, path := range u.entries() {
		ours, _ := valueAt(u.became, path).(map[string]any)
		for _, d := range tomlDiff(ours, valueAt(u.is, path).(map[string]any), nil) {
			if d.new == nil {
				continue
			}
			why := fmt.Sprintf(", with %s = %s", showPath(d.path), show(d.new))
			if d.old != nil {
				why += ", gpuadm had set " + show(d.old)
			}
			u.stays(path, "is there", why)
			kept = append(kept, path)
			break
		}
	}
	return kept
}

// keepDefault keeps a runtime of ours that is the default of what stays: without it the CRI plugin would not load.
func (u *tomlTakeOut) keepDefault() {
	for _, path := range u.entries() {
		inside := func(c tomlChange) bool { return hasPrefix(c.path, path) }
		rest, err := u.want()
		if err != nil || !lacksDefault(rest, path) || lacksDefault(u.was, path) || !slices.ContainsFunc(u.due, inside) {
			continue
		}
		u.due = slices.DeleteFunc(u.due, inside)
		u.stays(path, "is there", ", as the default runtime of what was set outside gpuadm")
	}
}

// lacksDefault says whether a runtime is the default one and not there: because it is named, or is runc beside others.
func lacksDefault(tree map[string]any, entry []string) bool {
	name, at := entry[len(entry)-1], entry[:len(entry)-2]
	containerd, _ := valueAt(tree, at).(map[string]any)
	set, runtimes := text(containerd, "default_runtime_name"), sub(containerd, "runtimes")
	return runtimes[name] == nil && (set == name || set == "" && name == "runc" && len(runtimes) > 0)
}

// keepVersion keeps the version that our edit brought while others' content is read by it. Where nothing else of ours is there
// the file was written anew, and the version with it.
func (u *tomlTakeOut) keepVersion() {
	isVersion := func(c tomlChange) bool { return len(c.path) == 1 && c.path[0] == "version" && c.old == nil }
	rest, err := u.want()
	if err != nil || len(rest) == 0 || !slices.ContainsFunc(u.due, isVersion) {
		return
	}
	u.due = slices.DeleteFunc(u.due, isVersion)
	if len(u.due) > 0 {
		u.stays([]string{"version"}, "is "+show(u.is["version"]), ", and what was added outside gpuadm is read by it")
	}
}

// want is what found must parse to without what is due.
func (u *tomlTakeOut) want() (map[string]any, error) {
	var ops []tomlOp
	for _, c := range u.due {
		ops = append(ops, tomlOp{c.path, c.old})
	}
	out, err := applyOps(u.is, ops)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Backward(u.made) {
		if isEmptyTable(valueAt(out, path)) {
			forgetExactly(out, path)
		}
	}
	return out, nil
}

func isEmptyTable(v any) bool {
	t, ok := v.(map[string]any)
	return ok && len(t) == 0
}

// rest turns back what is due: by lines first, which brings back every byte; by keys where the file was written anew.
func (u *tomlTakeOut) rest() ([]byte, error) {
	want, err := u.want()
	if err != nil {
		return nil, err
	}
	if u.same(u.is, want) && !slices.ContainsFunc(u.made, func(path []string) bool { return isEmptyTable(valueAt(u.is, path)) }) {
		return u.found, nil
	}
	if out := u.byLines(); u.proven(out, want) == nil {
		return out, nil
	}
	return u.byKeys()
}

// proven says what is wrong with a text that shall parse to a tree.
func (u *tomlTakeOut) proven(out []byte, want map[string]any) error {
	got, err := tomlTree(out)
	switch {
	case err != nil:
		return fmt.Errorf("the result would not parse: %w", err)
	case !u.same(got, want):
		return fmt.Errorf("the result would change %s", firstDifference(want, got))
	}
	return nil
}

// same compares trees. Whether a table around a key of ours that holds nothing is there is a matter of the text.
func (u *tomlTakeOut) same(a, b map[string]any) bool {
	a, b = copyTable(a), copyTable(b)
	for _, c := range u.changes {
		for n := len(c.path); n > 0; n-- {
			for _, t := range []map[string]any{a, b} {
				if isEmptyTable(valueAt(t, c.path[:n])) {
					forgetExactly(t, c.path[:n])
				}
			}
		}
	}
	return tomlEqual(a, b)
}

// byKeys turns each key back by itself, wherever it is now, and proves it. What cannot be proven stays.
func (u *tomlTakeOut) byKeys() ([]byte, error) {
	old, err := parseTOML(u.before)
	if err != nil {
		return nil, err
	}
	out, tree := u.found, u.is
	edit := func(path []string, value any, change func(d *tomlDoc) ([]byte, error)) error {
		want, err := applyOps(tree, []tomlOp{{path, value}})
		if err != nil {
			return err
		}
		d, err := parseTOML(out)
		if err != nil {
			return err
		}
		next, err := change(d)
		if err != nil {
			return err
		}
		if err := u.proven(next, want); err != nil {
			return err
		}
		out = next
		tree, err = tomlTree(out)
		return err
	}
	for _, c := range u.due {
		if err := edit(c.path, c.old, func(d *tomlDoc) ([]byte, error) { return d.revert(c, old) }); err != nil {
			u.stays(c.path, "is as gpuadm wrote it", ", and cannot be taken out: "+err.Error())
		}
	}
	for _, path := range slices.Backward(u.made) {
		if !isEmptyTable(valueAt(tree, path)) {
			continue
		}
		if err := edit(path, nil, func(d *tomlDoc) ([]byte, error) { return d.dropEmpty(path) }); err != nil {
			u.stays(path, "is an empty table that gpuadm wrote", ", and cannot be taken out: "+err.Error())
		}
	}
	return out, nil
}

func valueAt(t map[string]any, path []string) any {
	for _, name := range path[:len(path)-1] {
		t, _ = t[name].(map[string]any)
	}
	return t[path[len(path)-1]]
}

func forgetExactly(t map[string]any, path []string) {
	for _, name := range path[:len(path)-1] {
		t, _ = t[name].(map[string]any)
	}
	delete(t, path[len(path)-1])
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
