// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/lines"
)

// Rules are what a kind of file knows of its keys beyond TOML. Either may be nil.
type Rules struct {
	// Whole is called before all else: it returns tables that stay whole, noted by Stays.
	Whole func(*TakingOut) (kept [][]string)
	// Keep is called after it was decided what is due: it takes keys off Due that must stay.
	Keep func(*TakingOut)
}

// TakeOut takes our edit of a TOML file (before → after) out of found, which was changed outside
// gpuadm since, key by key. A key that is as we wrote it becomes what it was. A key that is gone,
// or is what it was, counts as taken out. Any other value stays, and left names it. Parsing proves
// that rest is found without what was taken out and nothing else. rest is nil when we made the file
// and nothing else is in it.
func (t *Texts) TakeOut(before, after, found []byte, rules Rules) (rest []byte, left []string, err error) {
	switch {
	case bytes.Equal(found, after):
		return before, nil, nil
	case bytes.Equal(found, before), bytes.Equal(before, after):
		return found, nil, nil
	}

	u, err := t.newTakeOut(before, after, found)
	if err != nil {
		return nil, nil, err
	}

	u.decide(rules)
	rest, err = u.rest()
	if err != nil {
		return nil, nil, err
	}
	if before == nil && len(bytes.TrimSpace(rest)) == 0 {
		rest = nil
	}
	left, err = u.leftAt()
	return rest, left, err
}

// TakingOut is gpuadm's edit, and the file that it is to be removed from.
type TakingOut struct {
	Was, Became, Is map[string]any // before our edit, after it, and as found
	Made            [][]string     // tables that our edit brought, outer ones first
	Due             []Change       // what of our edit is reverted

	before, after, found []byte
	texts                *Texts
	changes              []Change // our edit
	left                 []staying
}

// staying is what is left at a path, how it is found, and why that is so.
type staying struct {
	path    []string
	is, why string
}

func (t *Texts) newTakeOut(before, after, found []byte) (*TakingOut, error) {
	u := &TakingOut{
		before: before,
		after:  after,
		found:  found,
		texts:  t,
	}
	var err error
	u.Is, err = t.checked(found, "")
	if err != nil {
		return nil, err
	}
	u.Was, err = t.checked(before, "before gpuadm edited it ")
	if err != nil {
		return nil, err
	}
	u.Became, err = t.checked(after, "as gpuadm wrote it ")
	if err != nil {
		return nil, err
	}

	u.changes = Diff(u.Was, u.Became, nil)
	u.Made = newTables(u.Was, u.Became, nil)
	return u, nil
}

// checked returns the values of one of the texts; when says in an error which text it is.
func (t *Texts) checked(data []byte, when string) (map[string]any, error) {
	tree, err := t.Values(data)
	if err == nil && Depth(tree) > MaxDepth {
		err = ErrTooDeep
	}
	if err != nil {
		line, _ := ErrorPlace(err)
		cause := strings.TrimPrefix(err.Error(), "toml: ")
		return nil, fmt.Errorf("%sit is not valid TOML: line %d: %s", when, line, cause)
	}

	return tree, nil
}

// newTables lists the tables of b that a does not have.
func newTables(a, b map[string]any, at []string) [][]string {
	var out [][]string
	for _, p := range Sorted(b) {
		table, ok := p.Value.(map[string]any)
		if !ok {
			continue
		}
		path := append(slices.Clone(at), p.Key)
		old, had := a[p.Key].(map[string]any)
		if !had {
			out = append(out, path)
		}
		out = append(out, newTables(old, table, path)...)
	}

	return out
}

// decide says which parts of our edit are reverted, and which stay.
func (u *TakingOut) decide(rules Rules) {
	var kept [][]string
	if rules.Whole != nil {
		kept = rules.Whole(u)
	}
	for _, c := range u.changes {
		if slices.ContainsFunc(kept, func(table []string) bool { return HasPrefix(c.Path, table) }) {
			continue
		}
		now := ValueAt(u.Is, c.Path)
		_, isTable := now.(map[string]any)
		_, madeEmptyTable := c.New.(map[string]any)
		asRemoved := now == nil && c.New == nil && u.hasParent(c.Path)
		asWritten := now != nil && c.New != nil && Equal(now, c.New)
		asBefore := c.Old != nil && Equal(now, c.Old)
		switch {
		case asRemoved, asWritten:
			u.Due = append(u.Due, c)
		case now == nil, asBefore, isTable && madeEmptyTable:
			// it counts as taken out
		case c.New == nil:
			u.Stays(c.Path, "is "+Show(now), ", gpuadm had removed it")
		default:
			u.Stays(c.Path, "is "+Show(now), ", gpuadm had set "+Show(c.New))
		}
	}

	if rules.Keep != nil {
		rules.Keep(u)
	}
}

// Stays notes what is left, how it is found, and why that is so.
func (u *TakingOut) Stays(path []string, is, why string) {
	u.left = append(u.left, staying{path, is, why})
}

// leftAt says what is left, with the lines. Mostly nothing is left, and leftAt looks for no line.
func (u *TakingOut) leftAt() (left []string, err error) {
	if len(u.left) == 0 {
		return nil, nil
	}
	d, err := Parse(u.found)
	if err != nil {
		return nil, err
	}
	for _, s := range u.left {
		line := d.LineOf(s.path)
		left = append(left, fmt.Sprintf("%s %s (line %d)%s", ShowPath(s.path), s.is, line, s.why))
	}

	return left, nil
}

// hasParent reports whether the file still has the table around a key: half an entry is not
// restored.
func (u *TakingOut) hasParent(path []string) bool {
	if len(path) == 1 {
		return true
	}
	_, ok := ValueAt(u.Is, path[:len(path)-1]).(map[string]any)
	return ok
}

// Want is what found must parse to without what is due.
func (u *TakingOut) Want() (map[string]any, error) { return u.revertedIn(u.Is) }

// revertedIn is a tree without what is due.
func (u *TakingOut) revertedIn(tree map[string]any) (map[string]any, error) {
	var ops []Op
	for _, c := range u.Due {
		ops = append(ops, Op{c.Path, c.Old})
	}
	out, err := Apply(tree, ops)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Backward(u.Made) {
		out, err = dropIfEmpty(out, path)
		if err != nil {
			return nil, err
		}
	}

	return out, nil
}

// dropIfEmpty is the tree without the table at a path, if there is one and it holds nothing. The
// tree stays as it is.
func dropIfEmpty(tree map[string]any, path []string) (map[string]any, error) {
	if !isEmptyTable(ValueAt(tree, path)) {
		return tree, nil
	}
	return Apply(tree, []Op{Unset(path)})
}

func isEmptyTable(v any) bool {
	t, ok := v.(map[string]any)
	return ok && len(t) == 0
}

// rest reverts the changes that are due: line by line, exact to the byte, or key by key where
// another process has changed the lines.
func (u *TakingOut) rest() ([]byte, error) {
	want, err := u.Want()
	if err != nil {
		return nil, err
	}
	r := reverting{u, u.found, u.Is}
	if len(u.changes) > 0 {
		rest, ok := lines.TakeOut(u.before, u.after, u.found, "#")
		if ok && u.proven(rest, want) == nil && !u.leavesTables(rest) {
			return rest, nil
		}
		if ok {
			r.begin(rest, want)
		}
	}

	isEmpty := func(path []string) bool { return isEmptyTable(ValueAt(r.tree, path)) }
	if u.same(r.tree, want) && !slices.ContainsFunc(u.Made, isEmpty) {
		return r.text, nil
	}
	rest, err := r.byKeys()
	return lines.Ended(u.before, u.after, u.found, rest), err
}

// leavesTables says whether a text has an empty table that gpuadm's edit brought.
func (u *TakingOut) leavesTables(rest []byte) bool {
	tree, err := u.texts.Values(rest)
	return err != nil || slices.ContainsFunc(u.Made, func(path []string) bool {
		return isEmptyTable(ValueAt(tree, path))
	})
}

// proven says what is wrong with a text that shall parse to a tree.
func (u *TakingOut) proven(out []byte, want map[string]any) error {
	got, err := u.texts.Values(out)
	switch {
	case err != nil:
		return fmt.Errorf("the result would not parse: %w", err)
	case !u.same(got, want):
		return fmt.Errorf("the result would change %s", FirstDifference(want, got))
	}

	return nil
}

// same compares trees. Whether there is an empty table around gpuadm's key is a matter of the text.
func (u *TakingOut) same(a, b map[string]any) bool {
	a, errA := u.withoutEmpty(a)
	b, errB := u.withoutEmpty(b)
	return errA == nil && errB == nil && Equal(a, b)
}

func (u *TakingOut) withoutEmpty(tree map[string]any) (_ map[string]any, err error) {
	for _, c := range u.changes {
		for n := len(c.Path); n > 0; n-- {
			tree, err = dropIfEmpty(tree, c.Path[:n])
			if err != nil {
				return nil, err
			}
		}
	}
	return tree, nil
}

// byKeys reverts each key alone, wherever it is now, and proves the result. A key whose revert
// cannot be proven stays.
func (r *reverting) byKeys() ([]byte, error) {
	old, err := Parse(r.before)
	if err != nil {
		return nil, err
	}
	became, err := Parse(r.after)
	if err != nil {
		return nil, err
	}

	const cannot = ", and cannot be taken out: "
	for _, c := range r.Due {
		if r.isReverted(c) {
			continue
		}
		err := r.edit(c.Path, c.Old, func(d *Doc) (splice, error) { return d.revert(c, old) })
		if err != nil {
			r.Stays(c.Path, "is as gpuadm wrote it", cannot+err.Error())
		}
	}

	for _, path := range slices.Backward(r.Made) {
		if !isEmptyTable(ValueAt(r.tree, path)) {
			continue
		}
		apart := became.setApart(path, old)
		err := r.edit(path, nil, func(d *Doc) (splice, error) {
			return d.dropEmpty(path, apart)
		})
		if err != nil {
			r.Stays(path, "is an empty table that gpuadm wrote", cannot+err.Error())
		}
	}

	// A header of gpuadm's may be above tables that were there before.
	for _, e := range became.exprs {
		ours := e.header && !e.array && old.header(e.path) < 0
		if !ours {
			continue
		}
		if value := ValueAt(r.tree, e.path); value != nil {
			_ = r.edit(e.path, value, func(d *Doc) (splice, error) {
				return d.dropHeader(e.path)
			})
		}
	}

	return r.text, nil
}

// reverting is the file while its keys are reverted.
type reverting struct {
	*TakingOut
	text []byte
	tree map[string]any
}

// begin begins with a text in which some of the changes are reverted, if the others lead from there
// to what is wanted.
func (r *reverting) begin(text []byte, want map[string]any) {
	tree, err := r.texts.Values(text)
	if err != nil {
		return
	}
	reached, err := r.revertedIn(tree)
	if err == nil && r.same(reached, want) {
		r.text = text
		r.tree = tree
	}
}

// isReverted reports whether the file has the value from before gpuadm's edit.
func (r *reverting) isReverted(c Change) bool {
	now := ValueAt(r.tree, c.Path)
	if c.Old == nil {
		return now == nil
	}
	return now != nil && Equal(now, c.Old)
}

// edit makes a change to the text, and keeps the comments there. It proves that the change gives
// the path that value, and does nothing else.
func (r *reverting) edit(path []string, value any, change func(d *Doc) (splice, error)) error {
	want, err := Apply(r.tree, []Op{{path, value}})
	if err != nil {
		return err
	}
	d, err := Parse(r.text)
	if err != nil {
		return err
	}
	s, err := change(d)
	if err != nil {
		return err
	}
	next := d.make(d.keepingComments(s))
	if err := r.proven(next, want); err != nil {
		return err
	}

	r.text = next
	r.tree, err = r.texts.Values(next)
	return err
}

// header is the expression that is a table's header; -1 if it has none.
func (d *Doc) header(path []string) int {
	return slices.IndexFunc(d.exprs, func(e expr) bool {
		return e.header && !e.array && slices.Equal(e.path, path)
	})
}

// dropHeader removes the header of a table that contains only tables, and the empty line below it.
func (d *Doc) dropHeader(path []string) (splice, error) {
	i := d.header(path)
	if i < 0 || i+1 == len(d.exprs) || !d.exprs[i+1].header {
		return splice{}, nil
	}

	e := d.exprs[i]
	end := e.end
	next := lineEnd(d.src, end)
	if end < len(d.src) && len(bytes.TrimSpace(d.src[end:next])) == 0 {
		end = next
	}
	return splice{e.start, end, ""}, nil
}

// ValueAt is the value at a path; nil where there is none.
func ValueAt(t map[string]any, path []string) any {
	for _, name := range path[:len(path)-1] {
		t, _ = t[name].(map[string]any)
	}
	return t[path[len(path)-1]]
}

// revert undoes one change and restores the former value letter by letter.
func (d *Doc) revert(c Change, old *Doc) (splice, error) {
	if c.New == nil {
		if _, wasTable := c.Old.(map[string]any); wasTable {
			return d.add(c.Path, Table{})
		}
		return d.add(c.Path, c.Old)
	}

	now := d.lookup(c.Path)
	was := old.lookup(c.Path)
	_, isTable := c.New.(map[string]any)
	switch {
	case c.Old == nil && isTable:
		return splice{}, nil // an empty table: dropEmpty's
	case now == nil:
		return splice{}, fmt.Errorf("%s is out of reach", ShowPath(c.Path))
	case c.Old == nil:
		return d.takeAway(now)
	case !now.isLeaf() || !was.isLeaf():
		return splice{}, fmt.Errorf("%s is not a plain value", ShowPath(c.Path))
	}

	text := string(old.src[was.value.start:was.value.end])
	return splice{now.value.start, now.value.end, text}, nil
}

// setApart reports whether gpuadm's edit put an empty line above the header of a table: it adds
// none where there is one.
func (d *Doc) setApart(path []string, old *Doc) bool {
	i := d.header(path)
	if i < 0 || !d.blankBefore(d.exprs[i].start) {
		return false
	}

	belowOurs := i > 0 && old.lookup(d.exprs[i-1].path) == nil
	return belowOurs || !old.blankBefore(old.sectionEnd(path))
}

// dropEmpty removes the header or braces of an empty table, and the empty line above it.
func (d *Doc) dropEmpty(path []string, apart bool) (splice, error) {
	n := d.lookup(path)
	switch {
	case n == nil || len(n.kids) > 0:
		return splice{}, nil
	case n.kind == inlined:
		return d.takeAway(n)
	case n.kind != headed:
		return splice{}, nil
	}

	e := d.exprs[n.expr]
	start := e.start
	if apart && d.blankBefore(start) {
		start = d.lineBefore(start)
	}
	return splice{start, e.end, ""}, nil
}
