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

// unconverged names the first stage that is not converged.
type unconverged struct {
	stage string
	first Change // its first pending or deferred change
}

// note keeps the first stage that is not converged. A stage that can be made now counts before a
// deferred one, which may wait for it.
func (o *unconverged) note(stage string, steps []step) {
	for _, s := range steps {
		if !s.converged() && (o.stage == "" || s.now() && !o.first.now()) {
			o.stage, o.first = stage, s.Change
		}
	}
}

// before plans the stages that come before st in the sequence, except those in but, and returns the
// first unconverged one.
func (e *Engine) before(ctx context.Context, v host.View, st Stage, f facts.Facts, mine []ours, but []Stage) (o unconverged, err error) {
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

// trouble says that a stage cannot be made while an earlier one is not converged; nil if it can.
func (o *unconverged) trouble(stage string) error {
	if o.stage == "" {
		return nil
	}
	t := &trouble.Error{
		What: fmt.Sprintf("cannot make stage %s: stage %s is not converged: %s", stage, o.stage, o.first),
		Try:  []string{trouble.Command("apply") + ", which converges all stages in order"},
	}
	if first := o.first.trouble(); first != nil {
		t.Because, t.Try, t.Err = append([]string{first.What}, first.Because...), append(first.Try, t.Try...), first.Err
	} else if o.first.Deferred != "" {
		t.Because = []string{"deferred until " + strings.TrimPrefix(o.first.Deferred, "once ")}
	}
	return t
}

// allDeferred says that each change of a stage names the event that it waits for, which tells more
// than an unconverged earlier stage.
func allDeferred(steps []step) bool {
	return !slices.ContainsFunc(steps, func(s step) bool { return s.Deferred == "" || s.Waits != "" })
}

// cannotBeMade says that a stage has a change that cannot be made: its reason tells more than an
// unconverged earlier stage.
func cannotBeMade(steps []step) bool {
	return slices.ContainsFunc(steps, func(s step) bool { return s.Cannot != "" })
}

// planWhole plans a stage that is Whole. The stage is deferred while an earlier stage of the same
// apply is not converged; it cannot be made while any other stage is not converged.
func (e *Engine) planWhole(ctx context.Context, v host.View, st Stage, f facts.Facts, mine []ours, steps []step, asked unconverged) ([]step, error) {
	rest, err := e.before(ctx, v, st, f, mine, e.Stages)
	if err != nil || allDeferred(steps) {
		return steps, err
	}
	if asked.stage != "" && asked.first.now() {
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
	if cannotBeMade(steps) {
		return steps, nil
	}
	for _, o := range []unconverged{asked, rest} {
		if err := o.trouble(st.Name); err != nil {
			return []step{standIn(st.Name, err)}, nil
		}
	}
	return steps, nil
}
