// SPDX-License-Identifier: Apache-2.0

package converge

import "slices"

// owned is what gpuadm has done to one thing.
type owned struct {
	Change // the last one, as journalled
	key    key
	makes  []Change // all changes; an Unsure one may not have been made, since its run was cut short
	first  *Run     // which run touched it first
	last   *Run     // and last
}

// fold groups the runs' changes by thing, in the order of the first touch. A thing was touched
// after the things that it needs, so undo reverts it before them, even if they were changed again
// later. fold skips Followers: they have nothing to undo.
func fold(runs []Run) (list []owned) {
	at := map[key]int{}
	for r := range runs {
		run := &runs[r]
		for _, c := range run.Makes {
			if c.Follows {
				continue
			}

			is := c.key()
			i, known := at[is]
			if !known {
				i = len(list)
				at[is] = i
				list = append(list, owned{key: is, first: run})
			}

			list[i].add(c, run)
		}
	}

	return list
}

// add notes a later change to the thing.
func (o *owned) add(c Change, run *Run) {
	if len(c.Brings) == 0 { // the change was to the package's mark alone
		c.Brings = o.Brings
	}
	o.Change = c
	o.last = run

	c.Unsure = c.Unsure || run.Result == "" || run.Result == overtaken
	o.makes = append(o.makes, c)
}

// unsure says that the last change may not have been made.
func (o *owned) unsure() bool { return o.makes[len(o.makes)-1].Unsure }

// restored says that the thing has its first Before again, as far as the journal knows.
func (o *owned) restored() bool {
	state := o.After
	for _, c := range slices.Backward(o.makes) {
		switch state {
		case c.After:
			state = c.Before
		case c.Before:
		default:
			return false // it was changed outside gpuadm meanwhile
		}
	}

	return state == o.After
}

// present says that the thing is not as before gpuadm, or may not be.
func (o *owned) present() bool { return o.unsure() || !o.restored() }

// makesOf returns gpuadm's changes to a thing; nil if it made none.
func makesOf(all []owned, is key) []Change {
	for i := range all {
		if all[i].key == is {
			return all[i].makes
		}
	}
	return nil
}

// leftOf lists the states in which changes may have left a thing: the last, and the one before each
// that may not have been made.
func leftOf(makes []Change) (states []State) {
	for _, c := range slices.Backward(makes) {
		states = append(states, c.After)
		if !c.Unsure {
			break
		}
	}

	if len(states) == 0 {
		return []State{""}
	}
	return states
}

// knows says whether gpuadm found or made a state.
func knows(makes []Change, state State) bool {
	return slices.ContainsFunc(makes, func(c Change) bool {
		return c.Before == state || c.After == state
	})
}
