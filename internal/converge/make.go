// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
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
		if err == nil && !r.rolling() {
			err = r.consent(ctx, r.h, changes(due))
		}
		if err == nil && len(due) > 0 {
			r.at = due[0].Stage
			err = r.make(ctx, due)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// groups yields the steps in their order: those of one Batch that are beside each other as one
// group, others alone.
func groups(steps []step) iter.Seq[[]step] {
	return func(yield func([]step) bool) {
		for len(steps) > 0 {
			n := 1
			if is[Batch](steps[0]) {
				for n < len(steps) && steps[n].Kind == steps[0].Kind {
					n++
				}
			}
			if !yield(steps[:n]) {
				return
			}
			steps = steps[n:]
		}
	}
}

func changes(steps []step) (list []Change) {
	for _, s := range steps {
		list = append(list, s.Change)
	}
	return list
}

// due looks at steps again right before the touch, and returns those to make: earlier changes may
// have made others possible, or superfluous.
func (r *run) due(ctx context.Context, steps []step) (due []step, err error) {
	for _, s := range steps {
		if s.want.Thing != nil && !s.stuck && !(s.resolved && s.Deferred != "") { // what a Resolver could not answer, To cannot either
			r.lookAt(ctx, r.h, &s)
		}
		switch {
		case s.Cannot != "":
			return nil, s.trouble()
		case s.blocked():
			return nil, s.err
		case s.Deferred != "":
			r.postpone(s)
		case !s.converged():
			due = append(due, s)
		case r.rolling() && !s.Follows && s.Before == s.makes[0].Before:
			// The journal announced the change, and it was not made. The journal must say so: else
			// undo assumes that the run made it.
			s.Before = s.makes[len(s.makes)-1].After
			_ = r.journal(s.want.Thing, s.Change)
		}
	}
	return due, nil
}

func (r *run) postpone(s step) {
	if t, ok := s.want.Thing.(Follower); ok {
		if s.foresee(t, r.Made); s.idle || r.back() {
			return
		}
	}
	r.Deferred = append(r.Deferred, s.Change)
	r.event(Event{Stage: s.Stage, What: Deferred, Change: &s.Change})
}

// make announces a batch in the journal, makes it as one, and verifies each of its changes.
func (r *run) make(ctx context.Context, due []step) error {
	if err := r.announce(due); err != nil {
		return err
	}
	began := r.h.Now()
	r.facts = nil
	r.cache.Changes()
	err := makeAll(ctx, r.h, due)
	stays, reboot := Stays{}, host.Reboot{}
	switch {
	case errors.As(err, &stays):
		return r.stay(due, stays.Why)
	case errors.As(err, &reboot) && !r.back():
		r.remember(ctx, due)
		for _, s := range due[1:] {
			if failed := r.asksForReboot(s.Change, err); !errors.As(failed, new(host.Reboot)) {
				return failed
			}
		}
		return r.asksForReboot(due[0].Change, err)
	case errors.As(err, &reboot):
		r.Reboot = reboot.Why
	case err != nil && r.back() && is[Supplier](due[0]): // the changes that need it were made before it, or undo has named why not
		return r.stay(due, err.Error())
	case err != nil:
		r.remember(ctx, due)
		if t := (*trouble.Error)(nil); errors.As(err, &t) && t.Error() == err.Error() {
			return err // its text begins with "cannot" already
		}
		return fmt.Errorf("cannot make %s: %w", names(changes(due)), err)
	}
	for _, s := range due {
		now, err := s.want.Look(ctx, r.h)
		if err != nil {
			err = fmt.Errorf("cannot verify %s: %w", s, err)
		} else if now != s.After && reboot.Why == "" {
			err = fmt.Errorf("cannot make %s: wanted %q, found %q afterwards", s, s.After, now)
		}
		if err != nil {
			r.remember(ctx, due)
			return err
		}
		r.Made = append(r.Made, s.Change)
		r.event(Event{Stage: s.Stage, What: r.doing, Change: &s.Change, Text: reboot.Why, Millis: r.h.Now().Sub(began).Milliseconds()})
		if r.doing != Undone { // the plan of an undo names what stays
			for _, left := range s.Left {
				r.leave(s.Change, left)
			}
		}
	}
	return nil
}

// announce journals what is about to be made, and says so. A roll-back needs no line of its own:
// the Before is in the journal, and a full disk must not prevent the roll-back.
func (r *run) announce(due []step) error {
	for i := range due {
		s := &due[i]
		if err := r.rebootBudget(s.Change); err != nil && !r.back() && r.askedBefore(s.Change) {
			return err // it is in the same state as before the last reboot
		}
		if err := r.journal(s.want.Thing, s.Change); err != nil && !r.rolling() {
			return err
		}
		if !r.Brief {
			s.Change = s.show(r.h)
		}
		if !r.back() {
			r.event(Event{Stage: s.Stage, What: Making, Change: &s.Change, Usual: r.j.usual(s.Change)})
		}
	}
	return nil
}

// stay leaves things that others depend on by now. From now on the things belong to the others.
func (r *run) stay(due []step, why string) error {
	for _, s := range due {
		r.leave(s.Change, why)
		if !r.back() {
			s.Keeps, s.Before = why, s.After
			if err := r.journal(s.want.Thing, s.Change); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave notes a change of gpuadm's that stays.
func (r *run) leave(c Change, why string) {
	c.Cannot = why
	r.Left = append(r.Left, c)
	r.event(Event{Stage: c.Stage, What: Left, Change: &c, Text: why})
}

// remember journals the state in which a failed make, or one that takes effect after a reboot, has
// left a thing: so the state counts as gpuadm's. A Stored thing is replaced as a whole, so bytes
// that are neither Before nor After are another process's. The next undo reverts what could not be
// rolled back.
func (r *run) remember(ctx context.Context, due []step) {
	for _, s := range due {
		now, err := s.want.Look(ctx, r.h)
		whole := is[Stored](s)
		switch {
		case s.Follows, err == nil && now == s.After:
			continue
		case !r.back() && err == nil && whole && now == s.Before:
			r.unmade = append(r.unmade, s.key())
			continue
		case r.rolling() && (err != nil || whole || now == s.Before):
			s.Before, s.After = s.After, s.Before
		case err != nil, whole, now == s.Before:
			continue
		default:
			s.After = now
		}
		_ = r.journal(s.want.Thing, s.Change)
	}
}

func makeAll(ctx context.Context, h host.Host, due []step) error {
	if b, ok := due[0].want.Thing.(Batch); ok {
		return b.MakeAll(ctx, h, changes(due))
	}
	return due[0].want.Make(ctx, h, due[0].After)
}

// names lists the things of some changes, the first three by name: a Batch may have dozens.
func names(all []Change) string {
	var s []string
	for _, c := range all {
		s = append(s, c.String())
	}
	return strings.Join(trouble.Few(s, 3), ", ")
}

// asksForReboot journals that a change takes effect after a reboot, once in each boot.
func (r *run) asksForReboot(c Change, err error) error {
	if spent := r.rebootBudget(c); spent != nil {
		return spent
	}
	for _, rec := range r.j.Records {
		if rec.What == "reboot" && rec.Run == r.id && rec.Boot == r.boot && rec.Change.key() == c.key() {
			return err
		}
	}
	c.Diff = ""
	if werr := r.j.write(r.h, Record{What: "reboot", Run: r.id, Boot: r.boot, Change: &c}); werr != nil {
		return werr
	}
	return err
}

// askedBefore says whether a change has asked for a reboot before, and its Before is the same now.
func (r *run) askedBefore(c Change) bool {
	for _, rec := range slices.Backward(r.j.Records) {
		if rec.What == "reboot" && rec.Change.key() == c.key() {
			return rec.Change.Before == c.Before
		}
	}
	return false
}

// rebootBudget refuses the third reboot that a change asks for. An unattended run counts the
// reboots of all runs since the last that succeeded: otherwise each new run of the boot unit would
// have two more.
func (r *run) rebootBudget(c Change) error {
	boots := map[string]bool{}
	for _, rec := range r.j.Records {
		switch {
		case rec.What == "end" && rec.Result == "ok":
			clear(boots)
		case rec.What == "reboot" && (rec.Run == r.id || r.Unattended) && rec.Change.key() == c.key() &&
			rec.Change.After == c.After && rec.Boot != r.boot:
			boots[rec.Boot] = true
		}
	}
	if len(boots) < 2 {
		return nil
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot make %s: it has no effect after %d reboots", c, len(boots)),
		Because: []string{"another reboot would not help, so the run stops here"},
	}
}

// rollBack reverts what this run has changed in some stages, last first, and adds that to cause. It
// continues past what it cannot revert.
func (r *run) rollBack(ctx context.Context, cause error, of func(stage string) bool) error {
	ctx = context.WithoutCancel(ctx) // a run over its deadline must not leave a stage half done either
	r.event(Event{Stage: r.at, What: Failed, Text: cause.Error()})
	t := troubleOf(cause)
	all := r.journalled()
	back, rest := all.in(of), all.in(func(stage string) bool { return !of(stage) })
	if last := len(back.Makes) - 1; last >= 0 && slices.Contains(r.unmade, back.Makes[last].key()) {
		back.Makes[last].Affects = nil
	}
	undone, failed := r.revert(ctx, r.backwards(fold([]Run{back})))
	for _, err := range failed {
		t.Because = append(t.Because, fmt.Sprintf("this could not be rolled back: %v", err))
	}
	for _, c := range undone {
		t.Undone = append(t.Undone, c.String())
		r.Made = slices.DeleteFunc(r.Made, func(m Change) bool { return m.key() == c.key() })
	}
	if stages := rest.stages(); len(stages) > 0 {
		t.Because = append(t.Because, "the changes that this run made in these stages remain: "+strings.Join(stages, ", "))
		t.Try = append(t.Try, "or undo them too: "+undoing(r.id, nil))
	}
	return t
}

// revert makes the steps of a roll-back. The run's Result keeps nothing of it but a reboot that it
// needs.
func (r *run) revert(ctx context.Context, steps []step) (undone []Change, failed []error) {
	at, doing, made, reboot := r.at, r.doing, r.Made, r.Reboot
	r.doing, r.Made, r.Reboot = RolledBack, nil, ""
	var due []step
	for _, s := range steps {
		if s.Keeps != "" {
			r.event(Event{Stage: s.Stage, What: Kept, Change: &s.Change, Text: s.Keeps})
		} else {
			due = append(due, s)
		}
	}
	for group := range groups(due) {
		if err := r.walk(ctx, group); err != nil {
			failed = append(failed, err)
		}
	}
	undone = r.Made
	r.at, r.doing, r.Made, r.Reboot = at, doing, made, cmp.Or(r.Reboot, reboot)
	return undone, failed
}

// journalled is what the journal says of this run.
func (r *run) journalled() Run {
	runs := r.j.Runs()
	if i := slices.IndexFunc(runs, func(run Run) bool { return run.ID == r.id }); i >= 0 {
		return runs[i]
	}
	return Run{}
}
