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
	Changes   []Line   `json:"changes"`             // last touched first, a Batch at once, then the Followers
	Kept      []Line   `json:"kept,omitempty"`
	Left      []Line   `json:"left,omitempty"`

	steps []step
	leave []string // things that stay, as asked now and when the undo that continues began
}

// named is the run that a printed command names: a script can type it, since an undo that names its
// run does not ask. An undo that continues needs no name.
func (p UndoPlan) named(to string) string {
	if to != "" || p.Continues || len(p.Runs) == 0 {
		return to
	}
	return p.Runs[0]
}

// due is what is to be made.
func (p UndoPlan) due() []step {
	return slices.DeleteFunc(slices.Clone(p.steps), func(s step) bool {
		return s.converged() || s.Deferred != "" || s.Unknown != ""
	})
}

// NeedsPrograms reports whether a change is made by programs of the machine or image: packages.
func (p UndoPlan) NeedsPrograms() bool {
	return slices.ContainsFunc(p.due(), is[Resolver])
}

// PlanUndo says what Undo would do, and touches nothing.
func (e *Engine) PlanUndo(ctx context.Context, v host.View, to string, leave []string) (UndoPlan, error) {
	p, err := e.planUndo(ctx, v, ReadJournal(v), to, leave)
	for _, s := range p.due() {
		p.Changes = append(p.Changes, s.withDrawing(ctx, v))
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
	r.result.Damaged = r.journal.Damaged
	return r.undo(r.listen(ctx), to, leave)
}

func (r *run) undo(ctx context.Context, to string, leave []string) (Result, error) {
	p, err := r.engine.planUndo(ctx, r.host, r.journal, to, leave)
	if err != nil {
		return Result{}, err
	}
	if len(p.Runs) == 0 {
		found, err := r.sweepCut(ctx, p)
		if err == nil && !found {
			r.event(Event{What: Nothing})
		}
		return r.result, err
	}

	err = r.consent(ctx, linesOf(p.steps))
	if err != nil {
		return Result{}, err
	}

	// Once the undo has begun, no later run knows the run that it overtakes as cut short.
	if _, err := r.sweepCut(ctx, p); err != nil {
		return Result{}, err
	}
	r.found = perishable(p.steps)
	err = r.begin(p.Runs, len(p.due()), leave...)
	if err != nil {
		return Result{}, err
	}

	r.reportKept(p.Kept)
	for _, c := range p.Left {
		r.reportLeft(c, c.Cannot)
	}

	r.doing = Undone
	r.undoTo = cmp.Or(to, p.Runs[0]) // an undo that fails is rolled back, and none continues it
	r.leave = p.leave
	err = r.walk(ctx, p.steps)
	r.doing = Made

	switch {
	case trouble.Passes(err):
		// A roll-back would wait for the same event. The run stays open, and the next undo
		// continues it.
		return r.end(r.undoWaits(err))
	case err != nil && !pauses(err):
		// Half an undo helps no operator, and the machine was consistent before it.
		all := func(string) bool { return true }
		return r.end(r.rollBack(ctx, err, all))
	case err != nil:
		return r.end(err)
	case r.needsNewProcess(), r.waitsForBoot():
		return r.result, nil
	}

	return r.endUndo(ctx, p.Runs)
}

// reportKept names what the undo cannot revert.
func (r *run) reportKept(kept []Line) {
	for _, c := range kept {
		r.event(Event{
			Stage: c.Stage,
			What:  Kept,
			Line:  &c,
			Text:  c.Keeps,
		})
	}
}

// sweepCut starts again what a run that was cut short has stopped, but for what the undo of that
// run makes itself. The undo makes no Follower that none of the run's changes affects, and a run
// that has changed nothing else is not among the runs to undo.
func (r *run) sweepCut(ctx context.Context, p UndoPlan) (found bool, err error) {
	if !r.open || len(r.cut.Undoes) > 0 {
		return false, nil
	}
	isUndone := slices.Contains(p.Runs, r.cut.ID)
	for _, c := range slices.Backward(r.cut.Makes) {
		thing, _ := r.engine.ThingOf(c.Ref) // nil where this gpuadm does not know the kind
		sweeper, is := thing.(Sweeper)
		makes := func(s step) bool { return s.covers(c.Ref) }
		if !is || isUndone && slices.ContainsFunc(p.steps, makes) {
			continue
		}
		did, err := sweeper.Sweep(ctx, r.host, c.Before)
		if err != nil {
			return found, err
		}
		found = found || did
	}

	if found {
		r.event(Event{
			What: Healed,
			Text: "run " + r.cut.ID + " was cut short: what it had stopped runs again",
		})
	}

	return found, nil
}

// endUndo holds unattended applies, and closes the undo. Without its hold the run stays open: the
// next boot would apply again.
func (r *run) endUndo(ctx context.Context, undone []string) (Result, error) {
	if len(r.result.Made) > 0 || r.open {
		hold := Record{What: "hold", Run: undone[len(undone)-1]}
		if err := r.write(hold); err != nil {
			return r.result, unclosed(err)
		}
		r.forgetSpec()
	}

	result, err := r.end(nil)
	if err == nil {
		r.prune(ctx)
	}
	return result, err
}

// undoWaits adds to an error that passes how many changes the undo has made so far.
func (r *run) undoWaits(err error) error {
	t := troubleOf(err)
	t.Because = append(t.Because, trouble.Count(len(r.result.Made), "change")+" undone so far")
	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run " + trouble.Command("undo") + " again: it continues from here"}
	}
	return t
}

func (e *Engine) planUndo(
	ctx context.Context, v host.View, j Journal, to string, leave []string,
) (p UndoPlan, err error) {
	p.Format = PlanFormat
	p.Changes = []Line{}
	if j.Refused != nil {
		return p, j.Refused
	}
	if j.Newer > 0 || j.Problem != "" {
		return p, &trouble.Error{
			What:   "cannot undo: " + j.Damage(v),
			Undone: []string{trouble.NothingTouched},
		}
	}

	scope, err := j.scope(to, leave)
	p.Runs = scope.ids
	p.Continues = scope.continues
	p.leave = scope.leave
	if err != nil || len(scope.ids) == 0 {
		return p, err
	}

	var steps []step
	for _, s := range e.reverting(present(scope.runs)) {
		if !p.setAside(ctx, v, &s, scope.leave) {
			steps = append(steps, s)
		}
	}

	p.steps, err = e.lookAll(ctx, v, steps, nil)
	if err != nil {
		return p, err
	}
	if scope.continues {
		for i := range p.steps {
			s := &p.steps[i]
			s.mayBeGone = s.blocked() && s.withoutDriver()
		}
	}

	p.steps = perishablesLast(p.steps)

	if err := e.noteLost(ctx, v, p.steps); err != nil {
		return p, err
	}
	for i := range p.steps {
		s := &p.steps[i]
		s.first = firstState(scope.runs, s.key())
		p.noteRemains(s, scope.runs)
	}

	return p, obstacles(p.steps, p.named(to), scope.leave)
}

// A scope is what an undo reverts.
type scope struct {
	ids       []string // the runs, oldest first
	runs      []Run    // they, and the undos of them that were cut short or failed
	leave     []string // things that stay, as asked now and when the undo that continues began
	continues bool     // an undo that was cut short continues
}

func (j Journal) scope(to string, leave []string) (sc scope, err error) {
	last, open := j.unfinished()
	sc.leave = leave
	sc.continues = open && len(last.Undoes) > 0
	sc.ids, err = j.runsToUndo(to)
	if err != nil || len(sc.ids) == 0 {
		return sc, err
	}

	if open && to == "" {
		sc.leave = append(slices.Clone(leave), last.Leave...)
	}
	runs := j.Runs()
	chosen := map[string]bool{}
	for _, id := range sc.ids {
		chosen[id] = true
	}
	due := dueOf(runs)
	for _, run := range runs {
		reaches := run.reaches(due)
		inside := func(id string) bool { return chosen[id] }
		outside := func(id string) bool { return !chosen[id] }
		switch {
		case chosen[run.ID], run.halfUndo() && !slices.ContainsFunc(reaches, outside):
			sc.runs = append(sc.runs, run)
		case run.halfUndo() && slices.ContainsFunc(reaches, inside) && !run.settled():
			return scope{}, halfUndone(sc.ids[0], earliest(runs, due, reaches[0]), leave)
		}
	}

	return sc, nil
}

// halfUndo says that the run is an undo that was cut short or failed.
func (r Run) halfUndo() bool { return len(r.Undoes) > 0 && r.Result != "ok" }

// dueOf are the ids of the runs that could be undone.
func dueOf(runs []Run) map[string]bool {
	due := map[string]bool{}
	for _, run := range runs {
		due[run.ID] = !run.settled()
	}
	return due
}

// reaches are the runs that an undo undoes and that are still to undo, oldest first.
func (r Run) reaches(due map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(r.Undoes), func(id string) bool { return !due[id] })
}

// earliest is the run to which an undo has to go back that includes the run named id: it includes
// all that interrupted undos of its runs have reverted a part of.
func earliest(runs []Run, due map[string]bool, id string) string {
	at := map[string]int{}
	for i, run := range runs {
		at[run.ID] = i
	}

	for further := true; further; {
		further = false
		for _, run := range runs {
			reaches := run.reaches(due)
			if len(reaches) == 0 || !run.halfUndo() || run.settled() {
				continue
			}
			first := reaches[0]
			last := reaches[len(reaches)-1]
			if at[first] < at[id] && at[last] >= at[id] {
				id = first
				further = true
			}
		}
	}

	return id
}

// runsToUndo returns the ids of the runs to undo, oldest first.
func (j Journal) runsToUndo(to string) ([]string, error) {
	last, open := j.unfinished()
	if open && len(last.Undoes) > 0 && to == "" {
		return last.Undoes, nil
	}

	ids := []string{}
	restores := false
	found := to == "" || to == "all"
	for _, run := range slices.Backward(j.Runs()) {
		if run.Undone || len(run.Undoes) > 0 {
			continue
		}
		if run.changed() {
			ids = append(ids, run.ID)
			restores = restores || run.restores()
		}

		found = found || to == run.ID
		lastThatRestores := to == "" && restores
		if to == run.ID || lastThatRestores {
			break
		}
	}

	slices.Reverse(ids)

	switch {
	case !found:
		return ids, j.noRun(to, ids)
	case !restores:
		return []string{}, nil // a restart, say, or lists that were read
	}

	return ids, nil
}

// noRun says that the journal has no such run to undo, and which it has; ids come oldest first.
// Status lists them too, but needs a spec.
func (j Journal) noRun(to string, ids []string) error {
	t := &trouble.Error{What: fmt.Sprintf("cannot undo run %q: no such run, or it is already undone", to)}
	if len(ids) == 0 {
		t.Because = []string{"no run is left to undo here"}
		return t
	}

	slices.Reverse(ids)
	newest := strings.Join(trouble.Few(ids, 6), ", ")
	t.Because = []string{"these runs can be undone, the newest first: " + newest}
	if joins := j.joins(); joins != "" {
		t.Because = append(t.Because, "the runs from "+joins+" on that are not named any more were joined with it, since the journal has grown: they can be undone together, with --to "+joins)
	}
	t.Try = []string{
		trouble.Command("undo") + "    undoes the last run that left something to restore",
		trouble.Command("undo --to all") + "    undoes all",
	}
	return t
}

// ErrHalfUndone reports that one run cannot be undone alone: an interrupted undo of this and
// earlier runs has reverted a part of it.
var ErrHalfUndone = errors.New("half undone")

// halfUndone refuses the undo of a run: an interrupted undo reaches back to an earlier run.
func halfUndone(id, earliest string, leave []string) error {
	return &trouble.Error{
		What:   "cannot undo run " + id + ": an undo of it and of earlier runs was interrupted",
		Undone: []string{trouble.NothingTouched},
		Try:    []string{"undo the earlier ones too: " + undoCommand(earliest, leave)},
		Err:    ErrHalfUndone,
	}
}

// setAside moves a step to Left or Kept if this undo does not revert it: the operator named it, or
// no undo can.
func (p *UndoPlan) setAside(ctx context.Context, v host.View, s *step, leave []string) bool {
	named := slices.Contains(leave, s.Name) || slices.Contains(leave, s.String())
	switch {
	case s.Follows && !named:
		return false
	case named:
		if s.want.Thing != nil { // else of a kind that this gpuadm does not know
			s.look(ctx, v)
		}
		s.Cannot = cmp.Or(s.Cannot, s.Waits, s.Unknown, "as asked")
		s.Unknown = ""
		p.Left = append(p.Left, s.Line)
		return true
	case s.Keeps != "" && !s.finishes(ctx, v):
		p.Kept = append(p.Kept, s.Line)
		return true
	}

	return false
}

// finishes has an undo finish a change that it does not revert, if the change was cut short.
func (s *step) finishes(ctx context.Context, v host.View) bool {
	if !is[Finisher](*s) {
		return false
	}
	made := s.makes[len(s.makes)-1].After
	s.want.AsFound = true
	s.want.To = func(State) (State, error) { return made, nil }
	s.look(ctx, v)
	return s.Before != made || s.unseen
}

// noteLost asks each Resolver again about changes that could not have been reverted when they were
// made: that may be possible by now. It asks nothing if a Supplier gets something back, since the
// Resolver's answer would change with it.
func (e *Engine) noteLost(ctx context.Context, v host.View, steps []step) error {
	supplies := func(s step) bool { return s.supplies && !s.converged() && s.After != "" }
	if slices.ContainsFunc(steps, supplies) {
		return nil
	}

	mayBeLost := func(s step) bool { return s.Lost != "" && !s.converged() }
	for group := range groups(steps) {
		resolver, ok := group[0].want.Thing.(Resolver)
		if !ok || !slices.ContainsFunc(group, mayBeLost) {
			continue
		}
		lost, err := resolver.Lacks(ctx, v, changes(group))
		if err != nil {
			return err
		}

		for _, c := range lost {
			i := slices.IndexFunc(group, func(s step) bool { return s.key() == c.key() })
			s := &group[i]
			s.err = fmt.Errorf("cannot undo all of %s: %s", s.Kind, c.Lost)
			if s.Cannot == "" {
				s.Reason = cannot(s.err)
			}
		}
	}

	return nil
}

// noteRemains notes what this undo cannot revert of a step, and what it interrupts.
func (p *UndoPlan) noteRemains(s *step, runs []Run) {
	for _, left := range s.Left {
		c := s.Line
		c.Cannot = left
		p.Left = append(p.Left, c)
	}

	interrupts := s.Follows && !s.converged() && !s.blocked()
	if interrupts && !is[Disruptor](*s) {
		s.Breaks = interrupted(runs, s.key())
	}
}
