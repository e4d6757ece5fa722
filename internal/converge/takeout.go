// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// load makes sure that the thing knows the bytes a state names.
func load(v host.View, t Thing, s State) error {
	if st, ok := t.(Stored); ok {
		_, err := st.Bytes(v, s)
		return err
	}
	return nil
}

// halfWay says whether a state lies between two of the link's: a make that was cut short may have left it.
func (l link) halfWay(v host.View, m Merger, found State) bool {
	states := append([]State{l.Before}, l.made...)
	for i := len(states) - 1; i > 0; i-- {
		from, err := m.TakeOut(v, found, states[i-1], states[i])
		if err == nil && (from == l.Before || l.ours(from)) {
			return true
		}
	}
	return false
}

// takeOut counts our links out of a found state, newest first.
func takeOut(v host.View, t Thing, found State, links []link) (State, error) {
	for _, l := range slices.Backward(links) {
		switch {
		case found == l.Before:
		case l.ours(found):
			found = l.Before
		default:
			m, ok := t.(Merger)
			if !ok {
				return "", fmt.Errorf("cannot put back %s %s: it was changed since: left as %q, found as %q", t.Kind(), t.Name(), l.After, found)
			}
			// What names bytes is written as a whole, so whatever else is found is somebody else's.
			if _, whole := t.(Stored); !whole && l.halfWay(v, m, found) {
				found = l.Before
				continue
			}
			var err error
			if found, err = m.TakeOut(v, found, l.Before, l.After); err != nil {
				return "", err
			}
		}
	}
	return found, nil
}
