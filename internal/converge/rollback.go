// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// rollBack reverts what this run has changed in some stages, last first, and adds that to cause. It
// continues past what it cannot revert.
func (r *run) rollBack(ctx context.Context, cause error, of func(stage string) bool) error {
	ctx = context.WithoutCancel(ctx) // a run over its deadline must not leave a stage half done either
	r.event(Event{Stage: r.stage, What: Failed, Text: cause.Error()})

	all := r.journalled()
	failed := all.in(of)
	last := len(failed.Makes) - 1
	if last >= 0 && slices.Contains(r.unmade, failed.Makes[last].key()) {
		failed.Makes[last].Affects = nil
	}

	steps := r.engine.reverting(fold([]Run{failed}))
	var done rolledBack
	done.undone, done.errs = r.revert(ctx, steps)
	done.errs = append(done.errs, r.restorePerishable(ctx, steps)...)
	done.lost = r.notRestored(ctx, of)
	done.remaining = all.in(func(stage string) bool { return !of(stage) }).stages()
	r.forget(done.undone)

	t := troubleOf(cause)
	done.addTo(t, undoCommand(r.id, nil))
	return t
}

// forget takes changes that are undone out of the run's Result.
func (r *run) forget(undone []Change) {
	isUndone := func(made Change) bool {
		same := func(c Change) bool { return c.key() == made.key() }
		return slices.ContainsFunc(undone, same)
	}

	r.result.Made = slices.DeleteFunc(r.result.Made, isUndone)
}

// rolledBack is what a roll-back has come to.
type rolledBack struct {
	undone    []Change
	errs      []error  // of what could not be reverted
	lost      []string // what is not as before the run
	remaining []string // other stages whose changes of this run stay
}

// addTo adds it to the error that the run ends with; undo is the command that undoes the rest.
func (b rolledBack) addTo(t *trouble.Error, undo string) {
	for _, err := range b.errs {
		t.Because = append(t.Because, fmt.Sprintf("this could not be rolled back: %v", err))
	}
	for _, was := range b.lost {
		t.Because = append(t.Because, "this is not as before the run: "+was)
	}
	if len(b.undone)+len(b.errs)+len(b.lost)+len(b.remaining) > 0 {
		t.Undone = withoutClaim(t.Undone)
	}
	for _, c := range b.undone {
		t.Undone = append(t.Undone, c.String())
	}
	if len(b.remaining) > 0 {
		stages := strings.Join(b.remaining, ", ")
		t.Because = append(t.Because, "the changes that this run made in these stages remain: "+stages)
		t.Try = append(t.Try, "or undo them too: "+undo)
	}
}

// revert makes the steps of a roll-back. The run's Result keeps nothing of it but a reboot that it
// needs.
func (r *run) revert(ctx context.Context, steps []step) (undone []Change, errs []error) {
	before := *r
	r.doing = RolledBack
	r.result.Made = nil
	r.result.Reboot = ""

	var due []step
	for _, s := range steps {
		if s.Keeps == "" && s.UndoOnly == "" {
			due = append(due, s)
		} else {
			r.event(Event{
				Stage: s.Stage,
				What:  Kept,
				Line:  &s.Line,
				Text:  cmp.Or(s.Keeps, s.UndoOnly),
			})
		}
	}

	for group := range groups(due) {
		if err := r.walk(ctx, group); err != nil {
			errs = append(errs, err)
		}
	}

	undone = r.result.Made
	r.stage = before.stage
	r.doing = before.doing
	r.result.Made = before.result.Made
	r.result.Reboot = cmp.Or(r.result.Reboot, before.result.Reboot)
	return undone, errs
}

// notRestored looks at what a roll-back of some stages should have brought back beside their
// things, and names what is not as before the run.
func (r *run) notRestored(ctx context.Context, of func(stage string) bool) (lost []string) {
	restores := func(st Stage) bool {
		return st.Restores != nil && (of(st.Name) || of(st.Verifies))
	}
	if r.first == nil || !slices.ContainsFunc(r.engine.Stages, restores) {
		return nil
	}

	now, err := r.engine.Facts(ctx, r.host)
	if err != nil {
		return []string{"gpuadm cannot look: " + err.Error()}
	}
	for _, st := range r.engine.Stages {
		if !restores(st) {
			continue
		}
		before := st.Restores(*r.first)
		after := st.Restores(now)
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if after[name] != before[name] {
				left := cmp.Or(after[name], "none")
				lost = append(lost, fmt.Sprintf("%s: %s before, %s now", name, before[name], left))
			}
		}
	}

	return lost
}
