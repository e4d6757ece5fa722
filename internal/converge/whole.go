// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// open names the first stage that is not converged.
type open struct {
	stage string
	first Change // its first pending or deferred change
}

// now says that an apply of the same stages makes the change.
func (o *open) now() bool { return o.first.now() }

// note keeps the first stage that is not converged. A stage that can be made comes before one that is deferred: the other may
// be deferred until the first is made.
func (o *open) note(stage string, steps []step) {
	for _, s := range steps {
		if !s.converged() && (o.stage == "" || s.now() && !o.now()) {
			o.stage, o.first = stage, s.Change
		}
	}
}

// before plans the stages of the sequence before st, except those in but, and returns the first that is not converged.
func (e *Engine) before(ctx context.Context, v host.View, st Stage, f facts.Facts, mine []ours, but []Stage) (o open, err error) {
	all := e.Before
	if all == nil {
		all = e.Stages
	}
	for _, earlier := range all {
		if earlier.Name == st.Name {
			break
		}
		if slices.ContainsFunc(but, func(b Stage) bool { return b.Name == earlier.Name }) {
			continue
		}
		steps, err := e.planStage(ctx, v, earlier, f, mine)
		if err != nil {
			return o, err
		}
		o.note(earlier.Name, steps)
	}
	return o, nil
}

// trouble says that a stage cannot speak for the machine; nil if it can.
func (o *open) trouble(stage string) error {
	if o.stage == "" {
		return nil
	}
	t := &trouble.Error{
		What: fmt.Sprintf("cannot make stage %s: stage %s is not converged: %s", stage, o.stage, o.first),
		Try:  []string{trouble.Command("apply") + ", which converges all stages in order"},
	}
	switch {
	case o.first.Cannot != "":
		t.Because, t.Try = append([]string{o.first.Cannot}, o.first.Because...), append(o.first.Try, t.Try...)
	case o.first.Waits != "":
		t.Because, t.Try, t.Err = []string{o.first.Waits}, o.first.Try, trouble.Wait{For: o.first.Waits}
	case o.first.Deferred != "":
		t.Because = []string{"deferred until " + strings.TrimPrefix(o.first.Deferred, "once ")}
	}
	return t
}

// allDeferred says that all changes of a stage wait for an event that it names itself, which is better than a general reason.
func allDeferred(steps []step) bool {
	return !slices.ContainsFunc(steps, func(s step) bool { return s.Deferred == "" || s.Waits != "" })
}

// cannotItself says that a stage has a change of its own that cannot be made: its reason is nearer to the cause than an earlier stage.
func cannotItself(steps []step) bool {
	return slices.ContainsFunc(steps, func(s step) bool { return s.Cannot != "" })
}

// wholly plans a stage that is Whole. The stage is deferred while an earlier stage of the same apply is not
// converged; it cannot be made while any other stage is not converged.
func (e *Engine) wholly(ctx context.Context, v host.View, st Stage, f facts.Facts, mine []ours, steps []step, asked open) ([]step, error) {
	rest, err := e.before(ctx, v, st, f, mine, e.Stages)
	if err != nil || allDeferred(steps) {
		return steps, err
	}
	if asked.stage != "" && asked.now() {
		var left []step
		for _, s := range steps {
			if s.converged() {
				continue
			}
			s.Before, s.After, s.Reason = "", "", Reason{Deferred: "once stage " + asked.stage + " is converged"}
			left = append(left, s)
		}
		return left, nil
	}
	if cannotItself(steps) {
		return steps, nil
	}
	for _, o := range []open{asked, rest} {
		if err := o.trouble(st.Name); err != nil {
			return []step{standIn(st.Name, err)}, nil
		}
	}
	return steps, nil
}

// takeOut takes gpuadm's changes to a thing out of a found state. A part that is missing counts as taken out. left names gpuadm's parts
// that stay, because they were changed outside gpuadm since, also where gpuadm left them in an earlier run.
func takeOut(v host.View, t Thing, found State, makes []Change) (rest State, left []string, err error) {
	rest, left, err = strip(v, t, found, makes)
	m, merges := t.(Merger)
	if err != nil || rest == "" || !merges {
		return rest, left, err
	}
	for i, c := range makes[1:] {
		if _, before, err := strip(v, t, c.Before, makes[:i+1]); err == nil && len(before) > 0 {
			if _, still, err := m.TakeOut(v, rest, makes[i].Before, makes[i].After); err == nil {
				left = also(left, still...)
			}
		}
	}
	return rest, left, nil
}

// strip is takeOut that does not name what earlier runs left. Where found is a Before or After in makes, strip takes out the changes up
// to that one, and asks no Merger. Any other state was changed outside gpuadm since: a Merger takes gpuadm's part out of it.
func strip(v host.View, t Thing, found State, makes []Change) (rest State, left []string, err error) {
	last := makes[len(makes)-1]
	for i, c := range slices.Backward(makes) {
		if found == c.After || found == c.Before {
			rest, err = without(v, t, makes[:i+1])
			return rest, nil, err
		}
		if found == "" && i > 0 && makes[i-1].After != c.Before {
			break // between these two it was made outside gpuadm: it is not missing for the reason it was missing before
		}
	}
	m, merges := t.(Merger)
	if found == "" && (merges || !last.Unsure) { // else a make that was cut short may have left nothing
		return "", nil, nil
	}
	base, err := without(v, t, makes)
	switch {
	case err != nil, found == "":
		return base, nil, err
	case merges:
		return merged(v, m, found, base, last)
	case base == last.After && !last.Unsure:
		return found, nil, nil // it contains nothing of gpuadm's
	}
	return "", nil, fmt.Errorf("cannot undo %s: it was changed outside gpuadm since: left as %q, found as %q", t.Ref(), last.After, found)
}

// merged takes what gpuadm made of base out of found. Where the last change may not have been made, it takes out the one before it too.
func merged(v host.View, m Merger, found, base State, last Change) (rest State, left []string, err error) {
	rest, left, err = m.TakeOut(v, found, base, last.After)
	if err != nil || !last.Unsure || last.Before == base {
		return rest, left, err
	}
	if rest, _, err = m.TakeOut(v, rest, base, last.Before); err != nil {
		return "", nil, err
	}
	for _, made := range []State{last.After, last.Before} {
		if _, left, err = m.TakeOut(v, rest, base, made); err != nil || len(left) > 0 {
			break
		}
	}
	return rest, left, err
}

// without is the Before of the last change, without the changes before that.
func without(v host.View, t Thing, makes []Change) (State, error) {
	n := len(makes) - 1
	if n == 0 {
		return makes[0].Before, nil
	}
	base, _, err := strip(v, t, makes[n].Before, makes[:n])
	return base, err
}

// knows says whether a state is one that gpuadm found or made.
func knows(makes []Change, s State) bool {
	return slices.ContainsFunc(makes, func(c Change) bool { return c.Before == s || c.After == s })
}
