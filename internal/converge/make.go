// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Stays is what Make returns when a thing must stay because others depend on it by now: a folder
// that contains their files. Undo leaves it and says so.
type Stays struct{ Why string }

func (s Stays) Error() string { return s.Why }

// walk makes steps in their order, those of a Batch together, and looks at each again when its turn
// comes.
func (r *run) walk(ctx context.Context, steps []step) error {
	for group := range groups(steps) {
		if r.stopped() {
			return ErrStopped
		}

		due, err := r.due(ctx, group)
		if err == nil && !r.rollingBack() {
			err = r.consent(ctx, linesOf(due))
		}
		if err == nil && len(due) > 0 {
			r.stage = due[0].Stage
			err = r.makeGroup(ctx, due)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// due looks at steps again right before the touch, and returns those to make: earlier changes may
// have made others possible, or superfluous.
func (r *run) due(ctx context.Context, steps []step) (due []step, err error) {
	for _, s := range steps {
		if s.want.Thing != nil && !s.unanswered() {
			r.engine.lookAndAsk(ctx, r.host, &s)
		}

		switch {
		case s.goneWithDriver():
			// Undo has nothing left to revert.
		case s.late && r.result.Reboot != "":
			s.Reason = Reason{Deferred: "after the reboot", When: host.AfterReboot}
			r.postpone(s)
		case s.refused():
			return nil, s.trouble()
		case s.blocked():
			return nil, s.err
		case s.Silent != "" && !r.awaits():
			s.Reason = s.withoutEvent()
			r.postpone(s)
		case s.Deferred != "", s.Unknown != "":
			r.postpone(s)
		case !s.converged():
			due = append(due, s)
		case r.rollingBack():
			r.recordUnmade(s)
		}
	}
	return due, nil
}

// recordUnmade journals that the run has not made a change that it announced: a roll-back finds the
// thing as it was before. Without this record undo would assume that the run made the change.
func (r *run) recordUnmade(s step) {
	if s.Follows || s.Before != s.makes[0].Before {
		return
	}
	s.Before = s.makes[len(s.makes)-1].After
	_ = r.record(s.want.Thing, s.Change)
}

// awaits says that a change of this run comes by a reboot or a new process.
func (r *run) awaits() bool {
	return slices.ContainsFunc(r.result.Deferred, func(c Line) bool { return c.awaited() })
}

// postpone notes a step that waits, or whose state is unknown. It does not note a Follower that no
// change of this run affects.
func (r *run) postpone(s step) {
	follower, ok := s.want.Thing.(Follower)
	if ok {
		s.foresee(follower, r.result.Made)
		if s.idle || r.reverting() {
			return
		}
	}

	r.result.Deferred = append(r.result.Deferred, s.Line)
	what := Deferred
	if s.Unknown != "" {
		what = Unread
	}
	r.event(Event{Stage: s.Stage, What: what, Line: &s.Line})
}

// makeGroup announces a group of steps in the journal, makes it as one, and verifies each of its
// changes.
func (r *run) makeGroup(ctx context.Context, due []step) error {
	if err := r.announce(due); err != nil {
		return err
	}

	began := r.host.Now()
	r.facts = nil
	r.engine.cache.Changes()
	err := makeAll(ctx, r.host, due)

	var stays Stays
	var reboot host.Reboot
	if errors.As(err, &stays) {
		return r.leaveToOthers(due, stays.Why)
	}
	if errors.As(err, &reboot) && r.reverting() {
		r.result.Reboot = reboot.Why
	} else if err != nil {
		return r.settleFailure(ctx, due, err)
	}

	for _, s := range due {
		if err := r.verify(ctx, s, reboot); err != nil {
			r.recordFound(ctx, due)
			return err
		}
		r.result.Made = append(r.result.Made, s.Change)
		r.event(Event{
			Stage:  s.Stage,
			What:   r.doing,
			Line:   &s.Line,
			Text:   reboot.Why,
			Millis: r.host.Now().Sub(began).Milliseconds(),
		})
		if r.doing == Undone { // the plan of an undo names what stays
			continue
		}
		for _, left := range s.Left {
			r.reportLeft(s.Line, left)
		}
	}

	return nil
}

// settleFailure decides what an error of making a group means: that the things wait for a reboot,
// that they stay as they are, or that the run fails.
func (r *run) settleFailure(ctx context.Context, due []step, err error) error {
	var down DoesNotStart
	switch {
	case errors.As(err, new(host.Reboot)):
		r.recordFound(ctx, due)
		return r.askForReboot(due, err)
	case errors.As(err, &down) && r.leavesDaemon(due[0], down):
		causes := append([]string{err.Error()}, troubleOf(err).Because...)
		return r.leaveToOthers(due, strings.Join(causes, ": "))
	case errors.As(err, &down) && r.doing == Undone:
		return r.orLeave(due[0], err)
	case r.reverting() && is[Supplier](due[0]):
		// The changes that need it were made before it, or undo has named why not.
		return r.leaveToOthers(due, err.Error())
	}

	r.recordFound(ctx, due)
	return cannotMake(due, err)
}

// leavesDaemon says whether undo or a roll-back leaves a daemon alone that would not start again. A
// roll-back leaves a daemon that runs. An undo leaves a daemon that it has not affected, that does
// not run now, or that did not run before the first of the runs, since undo returns to that state.
// Any other undo fails: after it the daemon would not survive its next start.
func (r *run) leavesDaemon(s step, down DoesNotStart) bool {
	switch r.doing {
	case RolledBack:
		return down.Runs
	case Undone:
		return !down.Runs || s.first == down.Down || !r.affects(s)
	}
	return false
}

// affects says whether a change that this run has made affects a Follower.
func (r *run) affects(s step) bool {
	t, ok := s.want.Thing.(Follower)
	if !ok {
		return false
	}
	return slices.ContainsFunc(r.result.Made, func(c Change) bool {
		current := t.Current(s.Before)
		return t.Affected(current, c) != current
	})
}

// orLeave adds to the error of an undo that it may leave the daemon as it is, and revert all else.
func (r *run) orLeave(s step, err error) error {
	leave := append(slices.Clone(r.leave), s.String())
	t := troubleOf(err)
	t.Try = append(t.Try, "or undo all but the restart: "+undoCommand(r.undoTo, leave))
	return t
}

// announce journals what is about to be made, and says so. A roll-back needs no line of its own:
// the Before is in the journal, and a full disk must not prevent the roll-back.
func (r *run) announce(due []step) error {
	for i := range due {
		s := &due[i]
		err := r.rebootBudget(s.Change)
		if err != nil && !r.reverting() && r.askedBefore(s.Change) {
			return err // it is in the same state as before the last reboot
		}
		err = r.record(s.want.Thing, s.Change)
		if err != nil && !r.rollingBack() {
			return err
		}

		if !r.engine.Brief {
			s.Line = s.withDiff(r.host)
		}
		if !r.reverting() {
			usual := r.journal.usual(s.Change)
			r.event(Event{
				Stage: s.Stage,
				What:  Making,
				Line:  &s.Line,
				Usual: usual,
			})
		}
	}
	return nil
}

// makeAll makes a Batch as one, or the only step of another group. A thing that the spec wants
// makes the Batch, if there is one: it shares with the others what its stage has read of the
// machine, and MakeAll renews that. A thing that was built from the journal shares nothing.
func makeAll(ctx context.Context, h host.Host, due []step) error {
	maker := due[0]
	wanted := slices.IndexFunc(due, func(s step) bool { return !s.unwanted })
	if wanted >= 0 {
		maker = due[wanted]
	}

	batch, ok := maker.want.Thing.(Batch)
	if ok {
		return batch.MakeAll(ctx, h, changes(due))
	}
	return maker.want.Make(ctx, h, maker.After)
}

// cannotMake names what could not be made, unless the error's text does.
func cannotMake(due []step, err error) error {
	var t *trouble.Error
	if errors.As(err, &t) && t.Error() == err.Error() {
		return err // its text begins with "cannot" already
	}
	return fmt.Errorf("cannot make %s: %w", Names(changes(due)), err)
}

// verify looks at a thing after its change. A state that takes effect after a reboot cannot be seen
// yet.
func (r *run) verify(ctx context.Context, s step, reboot host.Reboot) error {
	now, err := s.want.Look(ctx, r.host)
	switch {
	case err != nil:
		return fmt.Errorf("cannot verify %s: %w", s, err)
	case now != s.After && reboot.Why == "":
		return fmt.Errorf("cannot make %s: wanted %q, found %q afterwards", s, s.After, now)
	}

	return nil
}

// leaveToOthers leaves things that others depend on by now. From now on the things belong to the
// others.
func (r *run) leaveToOthers(due []step, why string) error {
	for _, s := range due {
		r.reportLeft(s.Line, why)
		if r.reverting() {
			continue
		}
		s.Keeps = why
		s.Before = s.After
		if err := r.record(s.want.Thing, s.Change); err != nil {
			return err
		}
	}
	return nil
}

// recordFound journals the state in which a make has left a thing, if the make failed or takes
// effect after a reboot: so the state counts as gpuadm's. A Stored thing is replaced as a whole, so
// bytes that are neither Before nor After are another process's. The next undo reverts what could
// not be rolled back.
func (r *run) recordFound(ctx context.Context, due []step) {
	for _, s := range due {
		now, err := s.want.Look(ctx, r.host)
		if s.Follows || err == nil && now == s.After {
			continue
		}

		unknown := err != nil || is[Stored](s)
		unchanged := err == nil && now == s.Before
		switch {
		case unchanged && is[Stored](s) && !r.reverting():
			r.unmade = append(r.unmade, s.key())
			continue
		case !unknown && !unchanged:
			s.After = now
		case r.rollingBack():
			s.Before, s.After = s.After, s.Before
		default:
			continue
		}

		_ = r.record(s.want.Thing, s.Change)
	}
}
