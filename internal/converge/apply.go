// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// ErrStopped reports that a run was asked to stop between two changes. The next apply goes on.
var ErrStopped = errors.New("stopped as asked; the same command goes on from here")

// Result is how an apply or undo ended.
type Result struct {
	Run    string   `json:"run,omitempty"` // "" if there was nothing to do
	Made   []Change `json:"made,omitempty"`
	Later  []Change `json:"later,omitempty"`  // what waits, for the last line
	Left   []Change `json:"left,omitempty"`   // undo: what someone else changed since and was left as asked
	Held   string   `json:"held,omitempty"`   // the run whose undo holds
	Reboot string   `json:"reboot,omitempty"` // why a reboot is needed
	Stage  string   `json:"stage,omitempty"`  // the stage at work when it ended with an error, or the first that cannot be made
}

// Apply makes it so. Everything that can be known is looked at first, and nothing is touched if any of it cannot be
// made. Then each stage is looked at again when its turn comes; every change is in the journal before it is made and
// looked at after; when one fails, the stage's changes of this run are put back.
func (e *Engine) Apply(ctx context.Context, h host.Host) (Result, error) {
	r, unlock, err := e.start(h)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	ctx = r.listen(ctx)
	j := r.j
	e.proven.Clear() // a judge that could not be asked in the last try may be now
	held := j.Held()
	if held != "" && e.Unattended {
		e.tell(Event{Time: h.Now(), What: Held, Text: held})
		return Result{Held: held}, nil
	}
	r.heal()
	r.collect(ctx) // before all else, since a full disk may be why the last run failed
	plan, err := e.plan(ctx, h, j)
	if err != nil {
		return Result{}, err
	}
	if err := refuse(plan); err != nil {
		return Result{Stage: plan.Cannot()[0].Stage}, err
	}
	if err := e.consent(ctx, h, plan.Changes); err != nil {
		return Result{}, err
	}
	if held != "" {
		if err := r.j.write(h, Record{What: "lift"}); err != nil {
			return Result{}, err
		}
	}
	last, cut := j.unfinished()
	goesOn := cut && len(last.Undoes) == 0
	if goesOn {
		r.id = last.ID
	}
	if plan.Now() == 0 {
		if cut {
			if err := r.close(last); err != nil {
				return Result{}, err
			}
		}
		return r.nothing(plan), waiting(plan.Changes)
	}
	if err := r.begin(goesOn, nil); err != nil {
		return Result{}, err
	}
	if goesOn {
		if err := r.recall(ctx, last); err != nil {
			return r.end(err)
		}
	}
	if err := r.stages(ctx); err != nil || !r.anew() {
		if result, err := r.end(err); err != nil {
			return result, err
		}
	}
	return r.Result, waiting(r.Later)
}

// anew says that a new process goes on: the run stays open, and what is made there goes back with it.
func (r *run) anew() bool {
	return slices.ContainsFunc(r.Later, func(c Change) bool { return c.Later == host.NewProcess })
}

// nothing ends an apply that has nothing to make now.
func (r *run) nothing(plan Plan) Result {
	r.tell(Event{Time: r.h.Now(), What: Nothing, Text: fmt.Sprint(plan.Stands)})
	return Result{Later: plan.Changes}
}

func (r *run) stages(ctx context.Context) error {
	for _, st := range r.Stages {
		if err := r.stage(ctx, st); err != nil {
			return err
		}
	}
	return nil
}

// stage makes one stage's changes, each looked at when its turn comes, those that settle last.
func (r *run) stage(ctx context.Context, st Stage) error {
	r.at = st.Name
	done := slices.Clone(r.done[st.Name])
	back := func(err error) error { return r.turnBack(ctx, err, append(r.proved(st), done...)) }
	f, err := r.Facts(ctx, r.h)
	var steps []step
	if err == nil {
		steps, err = r.look(ctx, r.h, st, f, standing(r.j.Runs()))
	}
	if err == nil && st.Whole && !ownLater(steps) && !cannotItself(steps) {
		var o open
		if o, err = r.before(ctx, r.h, st, f, standing(r.j.Runs()), nil); err == nil {
			err = o.trouble(st.Name)
		}
	}
	if err != nil && len(r.proved(st)) > 0 {
		return back(err)
	} else if err != nil {
		return err
	}
	if !slices.ContainsFunc(steps, func(s step) bool { return !s.stands() }) {
		r.event(Event{Stage: st.Name, What: Stands, Text: fmt.Sprint(len(steps))})
		return nil
	}
	if r.May != nil {
		if err := r.May(ctx, r.h, f); err != nil {
			return err
		}
	}
	for len(steps) > 0 {
		if r.stopped() {
			return ErrStopped
		}
		n := batch(steps)
		again := r.again(ctx, steps[:n])
		steps = steps[n:]
		if err := r.consent(ctx, r.h, changes(again)); err != nil {
			return back(err)
		}
		if len(again) == 0 {
			continue
		}
		now, err := r.make(ctx, again)
		done = append(done, now...)
		r.done[st.Name] = done
		if reboot := (host.Reboot{}); errors.As(err, &reboot) || Passes(err) {
			return err
		} else if err != nil {
			return back(err)
		}
	}
	return nil
}

// proved is what this run has changed in the stages whose worth shows in this one, in the order of their making: those that
// it proves, and those that they prove.
func (r *run) proved(st Stage) (all []made) {
	for st.Proves != "" {
		all = append(slices.Clone(r.done[st.Proves]), all...)
		i := slices.IndexFunc(r.Stages, func(s Stage) bool { return s.Name == st.Proves })
		if i < 0 {
			break
		}
		st = r.Stages[i]
	}
	return all
}

func (r *run) stopped() bool {
	select {
	case <-r.Stop:
		return true
	default:
		return false
	}
}

// batch counts the steps at the front that are made as one.
func batch(steps []step) int {
	n := 1
	if _, ok := steps[0].want.Thing.(Batch); ok {
		for n < len(steps) && steps[n].Kind == steps[0].Kind {
			n++
		}
	}
	return n
}

func changes(steps []step) (list []Change) {
	for _, s := range steps {
		list = append(list, s.Change)
	}
	return list
}

// again looks once more right before the touch and returns what is to be made; earlier changes of the stage may have
// made it possible or superfluous. What cannot be made comes back alone, for make to report.
func (r *run) again(ctx context.Context, steps []step) []step {
	var due []step
	for _, s := range steps {
		if s.want.Thing == nil || s.stuck { // the stage itself could not say what it wants, or nobody what that takes
			return []step{s}
		}
		if s.resolved && s.Later != "" { // what making it would change is not known; To alone does not say
			r.later(s)
			continue
		}
		s.Cannot, s.Because, s.Try = "", nil, nil
		r.lookAt(ctx, r.h, &s)
		switch {
		case s.Cannot != "":
			return []step{s}
		case s.Later != "":
			r.later(s)
		case !s.stands():
			due = append(due, s)
		}
	}
	return due
}

func (r *run) later(s step) {
	if t, ok := s.want.Thing.(Settler); ok {
		s.foresee(t, r.Made)
		if s.Later == "nothing" {
			return
		}
	}
	r.Later = append(r.Later, s.Change)
	r.event(Event{Stage: s.Stage, What: Waits, Change: &s.Change})
}

// make journals the steps, makes them as one, and looks at each again.
func (r *run) make(ctx context.Context, steps []step) ([]made, error) {
	var done []made
	for i, s := range steps {
		if s.Cannot != "" {
			return nil, &Trouble{What: s.Cannot, Because: s.Because, Try: s.Try}
		}
		if err := r.rebootBudget(s.Change); err != nil {
			return nil, err
		}
		if err := r.journal(s.want.Thing, s.Change); err != nil {
			return done, err
		}
		steps[i].Change = s.show(r.h)
		done = append(done, made{Change: s.Change, thing: s.want.Thing})
		r.event(Event{Stage: s.Stage, What: Making, Change: &steps[i].Change})
	}
	began := r.h.Now()
	if err := makeAll(ctx, r.h, done); err != nil {
		if reboot := (host.Reboot{}); errors.As(err, &reboot) {
			if werr := r.j.write(r.h, Record{What: "reboot", Run: r.id, Boot: r.boot, Change: &done[0].Change}); werr != nil {
				return done, werr
			}
			return done, err
		}
		if t := (*Trouble)(nil); errors.As(err, &t) && t.Error() == err.Error() {
			return done, err // it says by itself what cannot be done
		}
		return done, fmt.Errorf("cannot make %s: %w", names(done), err)
	}
	for i, d := range done {
		now, err := d.thing.Look(ctx, r.h)
		if err != nil {
			return done, fmt.Errorf("cannot look at %s again: %w", d, err)
		}
		if now != d.After {
			return done, fmt.Errorf("cannot make %s: it did not hold: wanted %q, found %q", d, d.After, now)
		}
		r.Made = append(r.Made, steps[i].Change)
		r.event(Event{Stage: d.Stage, What: Made, Change: &steps[i].Change, Millis: r.h.Now().Sub(began).Milliseconds()})
	}
	return done, nil
}

func makeAll(ctx context.Context, h host.Host, all []made) error {
	if b, ok := all[0].thing.(Batch); ok {
		var cs []Change
		for _, m := range all {
			cs = append(cs, m.Change)
		}
		return b.MakeAll(ctx, h, cs)
	}
	return all[0].thing.Make(ctx, h, all[0].After)
}

// names are the things of some changes, in a text that can be read: made as one they may be dozens.
func names(all []made) string {
	const most = 3
	var s []string
	for i, m := range all {
		if i == most && len(all) > most+1 {
			s = append(s, fmt.Sprintf("and %d more", len(all)-most))
			break
		}
		s = append(s, m.String())
	}
	return strings.Join(s, ", ")
}

// rebootBudget keeps a change from asking for reboots for ever: it is made once a boot, and twice in a run. A run that has
// failed for it must not give the next one, by the boot unit, two more: unattended, all runs since the last good one count.
func (r *run) rebootBudget(c Change) error {
	asked := 0
	for _, rec := range r.j.Records {
		if rec.What == "end" && rec.Result == "ok" {
			asked = 0
		}
		if rec.What != "reboot" || rec.Run != r.id && !r.Unattended || rec.Change.key() != c.key() || rec.Change.After != c.After {
			continue
		}
		if asked++; rec.Boot == r.boot {
			return host.Reboot{Why: fmt.Sprintf("%s was made and holds after a reboot, which has not happened yet", c)}
		}
	}
	if asked >= 2 {
		return &Trouble{
			What:    fmt.Sprintf("cannot make %s: it still does not hold after %d reboots", c, asked),
			Because: []string{"rebooting once more would not help, so the run stops here"},
		}
	}
	return nil
}

// refuse returns what cannot be made, before anything is touched.
func refuse(p Plan) error {
	cannot := p.Cannot()
	if len(cannot) == 0 {
		return nil
	}
	t := &Trouble{What: cannot[0].Cannot, Because: cannot[0].Because}
	said := map[string]bool{t.What: true} // stages that all need the same may be refused for the same
	for _, c := range cannot[1:] {
		if !said[c.Cannot] {
			t.Because = append(append(t.Because, "also: "+c.Cannot), c.Because...)
		}
		said[c.Cannot] = true
	}
	for _, c := range cannot {
		for _, try := range c.Try {
			if !slices.Contains(t.Try, try) {
				t.Try = append(t.Try, try)
			}
		}
	}
	t.Because = append(t.Because, "nothing was touched")
	return t
}
