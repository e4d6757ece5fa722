// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// takeOut takes gpuadm's changes to a thing out of a found state. A part that is missing counts as
// taken out. left names gpuadm's parts that stay, because they were changed outside gpuadm since
// this run or an earlier one.
func takeOut(
	v host.View, t Thing, found State, makes []Change,
) (rest State, left []string, err error) {
	rest, left, err = without(v, t, found, makes)
	merger, merges := t.(Merger)
	if err != nil || rest == "" || !merges {
		return rest, left, err
	}

	for i, c := range makes[1:] {
		_, leftBefore, err := without(v, t, c.Before, makes[:i+1])
		if err != nil || len(leftBefore) == 0 {
			continue
		}
		_, still, err := merger.TakeOut(v, rest, makes[i].Before, makes[i].After)
		if err == nil {
			left = appendUnique(left, still...)
		}
	}
	return rest, left, nil
}

// without is a found state without gpuadm's changes. It does not name the parts that earlier runs
// left. If found is the Before or After of one of the makes, without takes out the changes up to
// that one and needs no Merger. Any other state was changed outside gpuadm: a Merger takes gpuadm's
// part out of it.
func without(
	v host.View, t Thing, found State, makes []Change,
) (rest State, left []string, err error) {
	for i, c := range slices.Backward(makes) {
		if found == c.After || found == c.Before {
			rest, err = beforeAll(v, t, makes[:i+1])
			return rest, nil, err
		}
		if found == "" && i > 0 && makes[i-1].After != c.Before {
			break // another process made it between these two changes, so it is missing for another reason than before them
		}
	}

	last := makes[len(makes)-1]
	merger, merges := t.(Merger)
	removedByOthers := merges || !last.Unsure // else a make that was cut short may have removed it
	if found == "" && removedByOthers {
		return "", nil, nil
	}

	base, err := beforeAll(v, t, makes)
	switch {
	case err != nil, found == "":
		return base, nil, err
	case merges:
		return merged(v, merger, found, base, last)
	case base == last.After && !last.Unsure:
		return found, nil, nil // it contains nothing of gpuadm's
	}
	return "", nil, fmt.Errorf("cannot undo %s: it was changed outside gpuadm since: left as %q, found as %q",
		t.Ref(), last.After, found)
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

// beforeAll returns the state before all makes: the Before of the last one, without the changes of
// the earlier ones.
func beforeAll(v host.View, t Thing, makes []Change) (State, error) {
	last := len(makes) - 1
	if last == 0 {
		return makes[0].Before, nil
	}

	base, _, err := without(v, t, makes[last].Before, makes[:last])
	return base, err
}
