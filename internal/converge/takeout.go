// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/host"
)

// takeOut takes gpuadm's changes to a thing out of a found state. A part that is missing counts as
// taken out. left names gpuadm's parts that stay, because they were changed outside gpuadm since
// this run or an earlier one.
func takeOut(
	v host.View, t Thing, found State, makes []Change,
) (rest State, left []string, err error) {
	all := newPast(v, t, makes)
	rest, left, err = all.without(found, len(makes))
	merger, merges := t.(Merger)
	if err != nil || rest == "" || !merges {
		return rest, left, err
	}

	for i := range makes[1:] {
		later := all.bases[i+1]
		if later.err != nil || len(later.left) == 0 {
			continue
		}
		_, still, err := merger.TakeOut(v, rest, makes[i].Before, makes[i].After)
		if err == nil {
			left = appendUnique(left, still...)
		}
	}

	return rest, left, nil
}

// A past is what gpuadm has done to one thing. It reads each change once, so the time grows with
// their number: a machine may have had thousands of runs.
type past struct {
	view  host.View
	thing Thing
	makes []Change
	bases []base        // for each of the makes: the state before it and all earlier ones
	known map[State]int // the last of the makes that have this Before or After; of the makes with a base
}

// A base is a state without gpuadm's changes, and what of them another process had changed.
type base struct {
	state State
	left  []string
	err   error
}

func newPast(v host.View, t Thing, makes []Change) *past {
	p := &past{
		view:  v,
		thing: t,
		makes: makes,
		known: map[State]int{},
	}
	for i, c := range makes {
		b := base{state: c.Before}
		if i > 0 {
			b.state, b.left, b.err = p.without(c.Before, i)
		}
		p.bases = append(p.bases, b)
		p.known[c.Before] = i
		p.known[c.After] = i
	}

	return p
}

// without is a found state without the first n changes. It does not name the parts that earlier
// runs left. If found is the Before or After of one of them, without takes out the changes up to
// that one and needs no Merger. Any other state was changed outside gpuadm: a Merger takes gpuadm's
// part out of it.
func (p *past) without(found State, n int) (rest State, left []string, err error) {
	i, ok := p.made(found, n)
	if ok {
		return p.bases[i].state, nil, p.bases[i].err
	}

	last := p.makes[n-1]
	merger, merges := p.thing.(Merger)
	removedByOthers := merges || !last.Unsure // else a make that was cut short may have removed it
	if found == "" && removedByOthers {
		return "", nil, nil
	}

	before := p.bases[n-1]
	switch {
	case before.err != nil, found == "":
		return before.state, nil, before.err
	case merges:
		return merged(p.view, merger, found, before.state, last)
	case before.state == last.After && !last.Unsure:
		return found, nil, nil // it contains nothing of gpuadm's
	}

	return "", nil, fmt.Errorf("cannot undo %s: it was changed outside gpuadm since: left as %q, found as %q",
		p.thing.Ref(), last.After, found)
}

// made is the last of the first n changes that has found as its Before or After.
func (p *past) made(found State, n int) (int, bool) {
	i, ok := p.known[found]
	if !ok || found != "" {
		return i, ok
	}

	for after := n - 1; after > i; after-- {
		if p.makes[after-1].After != p.makes[after].Before {
			// Another process made it between these two changes: it is missing for another reason
			// than before them.
			return 0, false
		}
	}

	return i, true
}

// merged has a Merger take the change from base to last.After out of found. If last may not have
// been made, found may have last.Before in place of last.After: then merged takes out both.
func merged(
	v host.View, m Merger, found, base State, last Change,
) (rest State, left []string, err error) {
	rest, left, err = m.TakeOut(v, found, base, last.After)
	if err != nil || !last.Unsure || last.Before == base {
		return rest, left, err
	}

	rest, _, err = m.TakeOut(v, rest, base, last.Before)
	if err != nil {
		return "", nil, err
	}
	for _, made := range []State{last.After, last.Before} {
		_, left, err = m.TakeOut(v, rest, base, made)
		if err != nil || len(left) > 0 {
			break
		}
	}

	return rest, left, err
}
