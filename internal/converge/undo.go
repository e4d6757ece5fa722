// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// An UndoPlan says what an undo would change.
type UndoPlan struct {
	Format    int      `json:"format"`
	Runs      []string `json:"runs"`                // which runs are undone, oldest first
	Continues bool     `json:"continues,omitempty"` // an undo of them that was cut short continues
	Changes   []Change `json:"changes"`             // in order: last touched first, a Batch in one go, then the Followers
	Kept      []Change `json:"kept,omitempty"`
	Left      []Change `json:"left,omitempty"`

	steps []step
}

// due is what is to be made.
func (p UndoPlan) due() []step {
	return slices.DeleteFunc(slices.Clone(p.steps), func(s step) bool { return s.converged() || s.Deferred != "" })
}

// PlanUndo says what Undo would do, and touches nothing.
func (e *Engine) PlanUndo(ctx context.Context, v host.View, to string, leave []string) (UndoPlan, error) {
	p, err := e.planUndo(ctx, v, ReadJournal(v), to, leave)
	for _, s := range p.due() {
		p.Changes = append(p.Changes, s.show(v))
	}
	return p, err
}

// Undo reverts the last run that left something to restore (to = ""), one run and all later ones
// (to = its id), or all runs ("all"). It restores each thing to its oldest Before in these runs.
// Where a thing was changed outside gpuadm since, Undo takes out gpuadm's part alone, and names the
// parts that stay. Where it cannot tell gpuadm's part apart, it touches nothing at all, unless
// leave names the thing. Afterwards unattended applies are held until an operator applies.
func (e *Engine) Undo(ctx context.Context, h host.Host, to string, leave []string) (Result, error) {
	r, unlock, err := e.resume(h)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	r.prune(ctx)
	r.Damaged = r.j.Damaged
	return r.undo(r.listen(ctx), to, leave)
}

func (r *run) undo(ctx context.Context, to string, leave []string) (Result, error) {
	p, err := r.planUndo(ctx, r.h, r.j, to, leave)
	if err != nil {
		return Result{}, err
	}
	if len(p.Runs) == 0 {
		r.event(Event{What: Nothing})
		return r.Result, nil
	}
	if err := r.consent(ctx, r.h, changes(p.steps)); err != nil {
		return Result{}, err
	}
	if err := r.begin(p.Runs, len(p.due()), leave...); err != nil {
		return Result{}, err
	}
	for _, c := range p.Kept {
		r.event(Event{Stage: c.Stage, What: Kept, Change: &c, Text: c.Keeps})
	}
	for _, c := range p.Left {
		r.leave(c, c.Cannot)
	}
	r.doing = Undone
	err = r.walk(ctx, p.steps)
	r.doing = Made
	switch {
	case trouble.Passes(err): // a roll-back would wait for the same: the run stays open, and the next undo continues it
		return r.end(r.waits(err))
	case err != nil && !pauses(err):
		// Half an undo helps no operator, and the machine was consistent before it.
		return r.end(r.rollBack(ctx, err, func(string) bool { return true }))
	case err != nil:
		return r.end(err)
	case r.newProcess():
		return r.Result, nil
	}
	if len(r.Made) > 0 || r.open {
		if err := r.j.write(r.h, Record{What: "hold", Run: p.Runs[len(p.Runs)-1]}); err != nil {
			return r.Result, unclosed(err) // the run stays open: without its hold the next boot would apply again
		}
	}
	result, err := r.end(nil)
	if err == nil {
		r.prune(ctx)
	}
	return result, err
}

// pauses says that a run stays open after an error: it continues after a reboot, or with the next
// command.
func pauses(err error) bool {
	return errors.Is(err, ErrStopped) || trouble.Passes(err) || errors.As(err, new(host.Reboot))
}

// waits adds to an error that passes how many changes the undo has made so far.
func (r *run) waits(err error) error {
	t := troubleOf(err)
	t.Because = append(t.Because, trouble.Count(len(r.Made), "change")+" undone so far")
	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run " + trouble.Command("undo") + " again: it continues from here"}
	}
	return t
}

// A scope is what an undo reverts.
type scope struct {
	ids   []string // the runs, oldest first
	runs  []Run    // they, and the undos of them that were cut short or failed
	leave []string // things that stay, as asked now and when the undo that continues began
	cut   bool     // an undo that was cut short continues
}

func (j Journal) scope(to string, leave []string) (of scope, err error) {
	last, open := j.unfinished()
	of.leave, of.cut = leave, open && len(last.Undoes) > 0
	if of.ids, err = j.undoes(to); err != nil || len(of.ids) == 0 {
		return of, err
	}
	if open && to == "" {
		of.leave = append(slices.Clone(leave), last.Leave...)
	}
	for _, run := range j.Runs() {
		undid := len(run.Undoes) > 0 && run.Result != "ok"
		if slices.Contains(of.ids, run.ID) || undid && subset(run.Undoes, of.ids) {
			of.runs = append(of.runs, run)
		} else if undid && overlap(run.Undoes, of.ids) && !run.settled() {
			return scope{}, &trouble.Error{
				What:    "cannot undo run " + of.ids[0] + ": an undo of it and of earlier runs was interrupted",
				Because: []string{nothingTouched},
				Try:     []string{"undo the earlier ones too: " + undoing(run.Undoes[0], leave)},
				Err:     ErrHalfUndone,
			}
		}
	}
	return of, nil
}

// undoes returns the ids of the runs to undo, oldest first.
func (j Journal) undoes(to string) ([]string, error) {
	if last, open := j.unfinished(); open && len(last.Undoes) > 0 && to == "" {
		return last.Undoes, nil
	}
	ids, restores, found := []string{}, false, to == "" || to == "all"
	for _, run := range slices.Backward(j.Runs()) {
		if run.Undone || len(run.Undoes) > 0 {
			continue
		}
		if run.changed() {
			ids, restores = append([]string{run.ID}, ids...), restores || run.restores()
		}
		if found = found || to == run.ID; to == run.ID || to == "" && restores {
			break
		}
	}
	switch {
	case !found:
		return ids, noRun(to, ids)
	case !restores:
		return []string{}, nil // a restart, say, or lists that were read
	}
	return ids, nil
}

// noRun says that there is no such run to undo, and which there are; ids come oldest first. Status
// lists them too, but needs a spec.
func noRun(to string, ids []string) error {
	t := &trouble.Error{What: fmt.Sprintf("cannot undo run %q: no such run, or it is already undone", to), Try: []string{"--to takes a run or all; without it the last run that left something to restore is undone"}}
	if len(ids) == 0 {
		t.Because, t.Try = []string{"no run is left to undo here"}, nil
	} else {
		slices.Reverse(ids)
		t.Because = []string{"these runs can be undone, the newest first: " + strings.Join(trouble.Few(ids, 6), ", ")}
	}
	return t
}

// ErrHalfUndone reports that one run cannot be undone alone: an interrupted undo of this and
// earlier runs has reverted a part of it.
var ErrHalfUndone = errors.New("half undone")

func (e *Engine) planUndo(ctx context.Context, v host.View, j Journal, to string, leave []string) (p UndoPlan, err error) {
	p.Format, p.Changes = PlanFormat, []Change{}
	if j.Refused != nil {
		return p, j.Refused
	}
	if j.Newer > 0 || j.Problem != "" {
		return p, &trouble.Error{What: "cannot undo: " + j.damage(v), Because: []string{nothingTouched}}
	}
	of, err := j.scope(to, leave)
	if p.Runs, p.Continues = of.ids, of.cut; err != nil || len(of.ids) == 0 {
		return p, err
	}
	var steps []step
	for _, s := range e.backwards(present(of.runs)) {
		if !p.stays(ctx, v, &s, of.leave) {
			steps = append(steps, s)
		}
	}
	if p.steps, err = e.lookAll(ctx, v, steps, nil); err != nil {
		return p, err
	}
	if of.cut { // the interrupted undo was changing the driver; what the old driver knew is gone with it
		p.steps = slices.DeleteFunc(p.steps, func(s step) bool { return s.blocked() && errors.As(s.err, new(*host.NoDriver)) })
	}
	if err := e.lacks(ctx, v, p.steps); err != nil {
		return p, err
	}
	for i := range p.steps {
		p.remains(&p.steps[i], of.runs)
	}
	return p, obstacles(p.steps, to, of.leave)
}

// stays moves a step to Left or Kept if this undo does not revert it: the operator named it, or no
// undo can.
func (p *UndoPlan) stays(ctx context.Context, v host.View, s *step, leave []string) bool {
	switch {
	case s.Follows:
		return false
	case slices.Contains(leave, s.Name) || slices.Contains(leave, s.String()):
		if s.want.Thing != nil { // else of a kind that this gpuadm does not know
			s.look(ctx, v)
		}
		s.Cannot = cmp.Or(s.Cannot, s.Waits, "as asked")
		p.Left = append(p.Left, s.Change)
	case s.Keeps != "":
		p.Kept = append(p.Kept, s.Change)
	default:
		return false
	}
	return true
}

// lacks asks each Resolver again about changes that could not have been reverted when they were
// made: that may be possible by now. It asks nothing if a Supplier gets something back, since the
// Resolver's answer would change with it.
func (e *Engine) lacks(ctx context.Context, v host.View, steps []step) error {
	if slices.ContainsFunc(steps, func(s step) bool { return s.supplies && !s.converged() && s.After != "" }) {
		return nil
	}
	for group := range groups(steps) {
		r, ok := group[0].want.Thing.(Resolver)
		if !ok || !slices.ContainsFunc(group, func(s step) bool { return s.Lost != "" && !s.converged() }) {
			continue
		}
		lost, err := r.Lacks(ctx, v, changes(group))
		if err != nil {
			return err
		}
		for _, c := range lost {
			s := &group[slices.IndexFunc(group, func(s step) bool { return s.key() == c.key() })]
			if s.err = fmt.Errorf("cannot undo all of %s: %s", s.Kind, c.Lost); s.Cannot == "" {
				s.Reason = cannot(s.err)
			}
		}
	}
	return nil
}

// remains notes what this undo cannot revert of a step, here and elsewhere, and what it interrupts.
func (p *UndoPlan) remains(s *step, runs []Run) {
	for _, left := range s.Left {
		c := s.Change
		c.Cannot = left
		p.Left = append(p.Left, c)
	}
	switch {
	case s.blocked():
	case s.Follows && !s.converged():
		if !is[Disruptor](*s) {
			s.Breaks = broke(runs, s.Change)
		}
	case s.After == "" && s.Before != "" && s.Leaves != "":
		c := s.Change
		c.Keeps = s.Leaves
		if !slices.ContainsFunc(p.Kept, func(k Change) bool { return k.Keeps == c.Keeps }) {
			p.Kept = append(p.Kept, c)
		}
	}
}

// backwards returns the steps that revert changes, the last touched thing first, then the Followers
// that these affect.
func (e *Engine) backwards(all []ours) (steps []step) {
	var last []step // the Followers
	for _, o := range slices.Backward(all) {
		s, err := e.takingOut(o)
		s.strict, s.resolved = true, true
		if err != nil {
			s.Cannot, s.err = err.Error(), err
		}
		at := len(steps)
		steps = append(steps, s)
		for _, t := range e.followers(o.Change) {
			_, supplier := t.(Supplier)
			steps[at].supplies = steps[at].supplies || supplier
			c := Change{Stage: o.Stage, Ref: t.Ref(), Follows: true}
			last = slices.DeleteFunc(last, func(s step) bool { return c.Ref.covers(s.Ref) })
			if !slices.ContainsFunc(last, func(s step) bool { return s.Ref.covers(c.Ref) }) {
				last = append(last, step{Change: c, want: Following(t, ""), strict: true})
			}
		}
	}
	return append(suppliersFirst(together(steps)), last...)
}

// suppliersFirst moves the steps that affect a Supplier before those of a Resolver, which asks it.
func suppliersFirst(steps []step) []step {
	if at := slices.IndexFunc(steps, is[Resolver]); at >= 0 {
		behind(steps[at:], func(s step) bool { return !s.supplies || is[Resolver](s) })
	}
	return steps
}

// broke is what a Follower interrupted when one of the runs made it: its undo interrupts the same.
func broke(runs []Run, c Change) []string {
	for _, run := range slices.Backward(runs) {
		for _, m := range run.Makes {
			if m.key() == c.key() && len(m.Breaks) > 0 {
				return m.Breaks
			}
		}
	}
	return nil
}
