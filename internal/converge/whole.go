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

// note keeps the first stage that is not converged. A stage that can be made comes before one that is deferred: the other may
// be deferred until the first is made.
func (o *open) note(stage string, steps []step) {
	for _, s := range steps {
		if !s.converged() && (o.stage == "" || s.now() && !o.first.now()) {
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
	if first := o.first.trouble(); first != nil {
		t.Because, t.Try, t.Err = append([]string{first.What}, first.Because...), append(first.Try, t.Try...), first.Err
	} else if o.first.Deferred != "" {
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
