// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// halfWay says whether a state lies between two of the link's: a make that was cut short may have left it.
func (l link) halfWay(v host.View, m Merger, found State) bool {
	states := append([]State{l.Before}, l.made...)
	for i := len(states) - 1; i > 0; i-- {
		from, left, err := m.TakeOut(v, found, states[i-1], states[i])
		if err == nil && len(left) == 0 && (from == l.Before || l.ours(from)) {
			return true
		}
	}
	return false
}

// takeOut takes gpuadm's links out of a found state. A part that is missing counts as taken out. left names gpuadm's parts that stay,
// because they were changed outside gpuadm since, also where gpuadm left them in an earlier run.
func takeOut(v host.View, t Thing, found State, links []link) (rest State, left []string, err error) {
	rest, left, err = strip(v, t, found, links)
	m, merges := t.(Merger)
	if err != nil || rest == "" || !merges {
		return rest, left, err
	}
	for i, l := range links[1:] {
		if _, before, err := strip(v, t, l.Before, links[:i+1]); err == nil && len(before) > 0 {
			if _, still, err := m.TakeOut(v, rest, links[i].Before, links[i].After); err == nil {
				left = append(left, still...)
			}
		}
	}
	return rest, left, nil
}

// strip is takeOut without what earlier runs left.
func strip(v host.View, t Thing, found State, links []link) (rest State, left []string, err error) {
	last := links[len(links)-1]
	m, merges := t.(Merger)
	for i, l := range slices.Backward(links) {
		if (found == l.Before || l.ours(found)) && (found != "" || i == len(links)-1) {
			rest, err = without(v, t, links[:i+1])
			return rest, nil, err
		}
	}
	if found == "" && (merges || !last.open) { // else a make that was cut short may have left nothing
		return "", nil, nil
	}
	base, err := without(v, t, links)
	switch {
	case err != nil, found == "":
		return base, nil, err
	case !merges && base == last.After && !last.open:
		return found, nil, nil // it contains nothing of gpuadm's
	case !merges:
		return "", nil, fmt.Errorf("cannot undo %s %s: it was changed outside gpuadm since: left as %q, found as %q", t.Kind(), t.Name(), last.After, found)
	}
	// What names bytes is written as a whole, so whatever else is found was written outside gpuadm.
	if _, whole := t.(Stored); !whole && last.halfWay(v, m, found) {
		return base, nil, nil
	}
	return last.takeOut(v, m, found, base)
}

// takeOut takes what the link made of base out of found. The last change of a run that was cut short may not have been made: then
// the one before it is taken out too.
func (l link) takeOut(v host.View, m Merger, found, base State) (rest State, left []string, err error) {
	rest, left, err = m.TakeOut(v, found, base, l.After)
	if err != nil || !l.open || l.from == base {
		return rest, left, err
	}
	earlier := l.from
	if rest, _, err = m.TakeOut(v, rest, base, earlier); err != nil {
		return "", nil, err
	}
	for _, made := range []State{l.After, earlier} {
		if _, left, err = m.TakeOut(v, rest, base, made); err != nil || len(left) > 0 {
			break
		}
	}
	return rest, left, err
}

// without is the state of the thing before the newest link, without what the older ones had made of it.
func without(v host.View, t Thing, links []link) (State, error) {
	older := links[:len(links)-1]
	if len(older) == 0 {
		return links[0].Before, nil
	}
	base, _, err := strip(v, t, links[len(older)].Before, older)
	return base, err
}
