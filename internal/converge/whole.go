// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// planWhole plans a stage that is Whole. The stage is deferred while an earlier stage of the same
// apply is not converged; it cannot be made while any other stage is not converged. blocking is the
// first unconverged stage of the same apply.
func (e *Engine) planWhole(
	ctx context.Context, m machine, st Stage, steps []step, blocking unconverged,
) ([]step, error) {
	others, err := e.unconvergedBefore(ctx, m, st, e.Stages)
	if err != nil || allDeferred(steps) {
		return steps, err
	}
	if blocking.stage != "" && blocking.first.now() {
		return deferAll(steps, "once stage "+blocking.stage+" is converged"), nil
	}
	if cannotBeMade(steps) {
		return steps, nil
	}

	for _, earlier := range []unconverged{blocking, others} {
		if err := earlier.trouble(st.Name); err != nil {
			return []step{standIn(st.Name, err)}, nil
		}
	}

	return steps, nil
}

// mayMakeWhole returns an error if a stage that is Whole has to wait for an earlier stage.
func (e *Engine) mayMakeWhole(ctx context.Context, m machine, st Stage, steps []step) error {
	if allDeferred(steps) || cannotBeMade(steps) {
		return nil
	}

	earlier, err := e.unconvergedBefore(ctx, m, st, nil)
	if err != nil {
		return err
	}
	return earlier.trouble(st.Name)
}

// allDeferred says that each change of a stage names the event that it waits for, which tells more
// than an unconverged earlier stage.
func allDeferred(steps []step) bool {
	return !slices.ContainsFunc(steps, func(s step) bool {
		return s.Deferred == "" || s.Waits != ""
	})
}

// cannotBeMade says that a stage has a change that cannot be made: its reason tells more than an
// unconverged earlier stage.
func cannotBeMade(steps []step) bool {
	return slices.ContainsFunc(steps, func(s step) bool {
		return s.Cannot != "" || s.Unknown != ""
	})
}

// deferAll returns the steps that are not converged, all of them deferred.
func deferAll(steps []step, until string) (deferred []step) {
	for _, s := range steps {
		if s.converged() {
			continue
		}
		s.Before = ""
		s.After = ""
		s.Reason = Reason{Deferred: until}
		deferred = append(deferred, s)
	}
	return deferred
}

// unconverged names the first stage that is not converged; the zero value: all are.
type unconverged struct {
	stage string
	first Line // its first pending or deferred change
}

// unconvergedBefore plans the stages that come before st in the sequence, except those in skip, and
// returns the first unconverged one.
func (e *Engine) unconvergedBefore(
	ctx context.Context, m machine, st Stage, skip []Stage,
) (first unconverged, err error) {
	sequence := e.Before
	if sequence == nil {
		sequence = e.Stages
	}

	comes := false
	for _, earlier := range sequence {
		if earlier.Name == st.Name {
			break
		}
		if slices.ContainsFunc(skip, func(s Stage) bool { return s.Name == earlier.Name }) {
			continue
		}
		steps, err := e.planStage(ctx, m, earlier)
		if err != nil {
			return first, err
		}
		comes = settleSilent(steps, comes)
		first.note(earlier.Name, steps)
	}

	return first, nil
}

// note keeps the first stage that is not converged. A stage that can be made now counts before a
// deferred one, which may wait for it. What waits for another kernel does not count.
func (u *unconverged) note(stage string, steps []step) {
	for _, s := range steps {
		comesFirst := u.stage == "" || s.now() && !u.first.now()
		counts := !s.converged() && s.When != host.AnotherKernel
		if counts && comesFirst {
			u.stage = stage
			u.first = s.Line
		}
	}
}

// trouble says that a stage cannot be made while an earlier one is not converged; nil if it can.
func (u *unconverged) trouble(stage string) error {
	if u.stage == "" {
		return nil
	}

	t := &trouble.Error{
		What: fmt.Sprintf("cannot make stage %s: stage %s is not converged: %s", stage, u.stage, u.first),
		Try:  []string{trouble.Command("apply") + ", which converges all stages in order"},
	}
	first := u.first.trouble()
	switch {
	case first != nil:
		t.Because = append([]string{first.What}, first.Because...)
		t.Try = append(first.Try, t.Try...)
		t.Err = first.Err
	case u.first.Deferred != "":
		t.Because = []string{"deferred until " + strings.TrimPrefix(u.first.Deferred, "once ")}
	}

	return t
}
