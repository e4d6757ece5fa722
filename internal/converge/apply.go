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
var ErrStopped = errors.New("stopped as asked; the next apply goes on from here")

// Result is how an apply or undo ended.
type Result struct {
	Run    string   `json:"run,omitempty"` // "" if there was nothing to do
	Made   []Change `json:"made,omitempty"`
	Later  []Change `json:"later,omitempty"`  // what waits, for the last line
	Left   []Change `json:"left,omitempty"`   // undo: what someone else changed since and was left as asked
	Held   string   `json:"held,omitempty"`   // the run whose undo holds
	Reboot string   `json:"reboot,omitempty"` // why a reboot is needed
}

// run is one apply or undo at work.
type run struct {
	*Engine
	h    host.Host
	j    Journal
	id   string
	boot string
	Result
}

// made is a change of this run with the thing that made it.
type made struct {
	Change
	thing Thing
}

// Apply makes it so. Everything that can be known is looked at first, and nothing is touched if any of it cannot be
// made. Then each stage is looked at again when its turn comes; every change is in the journal before it is made and
// looked at after; when one fails, the stage's changes of this run are put back.
func (e *Engine) Apply(ctx context.Context, h host.Host) (Result, error) {
	unlock, err := h.Lock()
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	j, err := ReadJournal(h)
	if err != nil {
		return Result{}, err
	}
	held := j.Held()
	if held != "" && e.Unattended {
		e.tell(Event{Time: h.Now(), What: Held, Text: held})
		return Result{Held: held}, nil
	}
	r := &run{Engine: e, h: h, j: j, boot: bootID(h)}
	plan, err := e.plan(ctx, h, j)
	if err != nil {
		return Result{}, err
	}
	if err := refuse(plan); err != nil {
		return Result{}, err
	}
	if err := e.consent(ctx, h, plan.Changes); err != nil {
		return Result{}, err
	}
	if held != "" {
		if err := r.j.write(h, Record{What: "lift"}); err != nil {
			return Result{}, err
		}
	}
	last, goesOn := j.unfinished()
	goesOn = goesOn && len(last.Undoes) == 0
	if goesOn {
		r.id = last.ID
	}
	if plan.Now() == 0 {
		return r.nothing(plan, goesOn)
	}
	if err := r.begin(goesOn, nil); err != nil {
		return Result{}, err
	}
	return r.end(r.stages(ctx))
}

// nothing ends an apply that has nothing to make now; a run that a power cut left open is closed.
func (r *run) nothing(plan Plan, goesOn bool) (Result, error) {
	if goesOn {
		if err := r.j.write(r.h, Record{What: "end", Run: r.id, Result: "ok"}); err != nil {
			return Result{}, err
		}
	}
	r.tell(Event{Time: r.h.Now(), What: Nothing, Text: fmt.Sprint(plan.Stands)})
	return Result{Later: plan.Changes}, nil
}

func (r *run) stages(ctx context.Context) error {
	for _, st := range r.Stages {
		if err := r.stage(ctx, st); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) begin(goesOn bool, undoes []string) error {
	text := ""
	if goesOn {
		text = "goes on"
	} else {
		r.id = r.h.Now().UTC().Format("20060102T150405Z")
		for n, base := 2, r.id; slices.ContainsFunc(r.j.Records, func(o Record) bool { return o.Run == r.id }); n++ {
			r.id = fmt.Sprintf("%s-%d", base, n)
		}
	}
	r.Run = r.id
	r.event(Event{What: Began, Text: text})
	return r.j.write(r.h, Record{What: "begin", Run: r.id, Boot: r.boot, Tool: r.Version, Spec: r.Spec.Digest(), Undoes: undoes})
}

// end closes the run in the journal. What was stopped or waits for a reboot stays open, and the next run goes on with it.
func (r *run) end(err error) (Result, error) {
	if reboot := (host.Reboot{}); errors.As(err, &reboot) {
		r.Reboot = reboot.Why
		r.event(Event{What: Reboots, Text: reboot.Why})
		return r.Result, nil
	}
	if errors.Is(err, ErrStopped) {
		return r.Result, err
	}
	result := "ok"
	if err != nil {
		result = "failed"
	}
	if werr := r.j.write(r.h, Record{What: "end", Run: r.id, Result: result}); werr != nil && err == nil {
		err = &Trouble{What: fmt.Sprintf("cannot close the run: %v", werr), Err: werr, Because: []string{"all its changes were made and stand; the next apply closes it"}}
	}
	r.event(Event{What: Ended, Text: result})
	return r.Result, err
}

func (r *run) event(ev Event) {
	ev.Time, ev.Run = r.h.Now(), r.id
	r.tell(ev)
}

// stage makes one stage's changes, each looked at when its turn comes, those that settle last.
func (r *run) stage(ctx context.Context, st Stage) error {
	f, err := r.cache.Gather(ctx, r.h)
	if err != nil {
		return err
	}
	steps, err := r.look(ctx, r.h, st, f, standing(r.j.Runs()))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(steps, func(s step) bool { return !s.stands() }) {
		r.event(Event{Stage: st.Name, What: Stands, Text: fmt.Sprint(len(steps))})
		return nil
	}
	var done []made
	for len(steps) > 0 {
		if r.stopped() {
			return ErrStopped
		}
		n := batch(steps)
		again := r.again(ctx, steps[:n])
		steps = steps[n:]
		if err := r.consent(ctx, r.h, changes(again)); err != nil {
			return r.turnBack(ctx, err, done)
		}
		if len(again) == 0 {
			continue
		}
		now, err := r.make(ctx, again)
		done = append(done, now...)
		if reboot := (host.Reboot{}); errors.As(err, &reboot) {
			return err
		} else if err != nil {
			return r.turnBack(ctx, err, done)
		}
	}
	return nil
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
	var todo []step
	for _, s := range steps {
		if s.want.Thing == nil { // the stage itself could not say what it wants
			return []step{s}
		}
		s.Cannot, s.Try = "", nil
		s.look(ctx, r.h)
		switch {
		case s.Cannot != "":
			return []step{s}
		case s.Later != "":
			r.later(s)
		case !s.stands():
			todo = append(todo, s)
		}
	}
	return todo
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
			return nil, &Trouble{What: s.Cannot, Try: s.Try}
		}
		if err := r.rebootBudget(s.Change); err != nil {
			return nil, err
		}
		if err := r.journal(s.want.Thing, s.Change); err != nil {
			return done, err
		}
		steps[i].Change = s.show(r.h)
		done = append(done, made{s.Change, s.want.Thing})
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

func (r *run) journal(t Thing, c Change) error {
	if err := makeHome(r.h); err != nil {
		return err
	}
	if err := keep(r.h, t, c); err != nil {
		return err
	}
	c.Diff = ""
	return r.j.write(r.h, Record{What: "make", Run: r.id, Change: &c})
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

func names(all []made) string {
	var s []string
	for _, m := range all {
		s = append(s, m.String())
	}
	return strings.Join(s, ", ")
}

// rebootBudget keeps a change from asking for reboots for ever: it is made once a boot, and twice in a run.
func (r *run) rebootBudget(c Change) error {
	asked := 0
	for _, rec := range r.j.Records {
		if rec.What != "reboot" || rec.Run != r.id || rec.Change.key() != c.key() || rec.Change.After != c.After {
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

// turnBack puts back what the stage changed in this run, last first, and says so.
func (r *run) turnBack(ctx context.Context, cause error, done []made) error {
	ctx = context.WithoutCancel(ctx) // a run that ran out of time still leaves nothing half done
	t := &Trouble{What: cause.Error(), Err: cause}
	if inner := (*Trouble)(nil); errors.As(cause, &inner) {
		t.Because, t.Try = inner.Because, inner.Try
	}
	r.event(Event{What: Failed, Text: cause.Error()})
	slices.Reverse(done)
	slices.SortStableFunc(done, func(a, b made) int { return settles(a.thing) - settles(b.thing) })
	var back []Change
	for len(done) > 0 {
		n := together(done)
		undone, err := r.putBack(ctx, done[:n])
		done = done[n:]
		back = append(back, undone...)
		if err != nil {
			t.Because = append(t.Because, fmt.Sprintf("and it could not be put back: %v", err))
		}
	}
	for _, c := range back {
		t.Undone = append(t.Undone, c.String())
	}
	r.Made = slices.DeleteFunc(r.Made, func(c Change) bool {
		return slices.ContainsFunc(back, func(b Change) bool { return b.key() == c.key() })
	})
	return t
}

// putBack makes one batch stand as before. Each change's After is where it is now taken to stand.
func (r *run) putBack(ctx context.Context, batch []made) ([]Change, error) {
	var todo []made
	for _, m := range batch {
		if m.Keeps != "" {
			r.event(Event{Stage: m.Stage, What: Kept, Change: &m.Change, Text: m.Keeps})
			continue
		}
		st, settler := m.thing.(Settler)
		found, err := m.thing.Look(ctx, r.h)
		if later := (host.Later{}); settler && errors.As(err, &later) {
			continue // it does not run, and will start with what it then finds
		} else if err != nil {
			return nil, err
		}
		if m.Before, m.After = m.After, m.Before; settler {
			m.Before, m.After = found, st.Settled(found)
		}
		if found == m.After {
			continue
		}
		m.Why = ""
		if err := r.journal(m.thing, m.Change); err != nil {
			return nil, err
		}
		todo = append(todo, m)
	}
	if len(todo) == 0 {
		return nil, nil
	}
	err := makeAll(ctx, r.h, todo)
	if stays := (Stays{}); errors.As(err, &stays) {
		for _, m := range todo {
			m.Cannot = stays.Why
			r.Left = append(r.Left, m.Change)
			r.event(Event{Stage: m.Stage, What: Left, Change: &m.Change, Text: stays.Why})
		}
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("cannot put back %s: %w", names(todo), err)
	}
	var back []Change
	for _, m := range todo {
		now, err := m.thing.Look(ctx, r.h)
		if err != nil {
			return back, err
		}
		if now != m.After {
			return back, fmt.Errorf("cannot put back %s: it did not hold: wanted %q, found %q", m, m.After, now)
		}
		back = append(back, m.Change)
		r.event(Event{Stage: m.Stage, What: Undone, Change: &m.Change})
	}
	return back, nil
}

// refuse returns what cannot be made, before anything is touched.
func refuse(p Plan) error {
	cannot := p.Cannot()
	if len(cannot) == 0 {
		return nil
	}
	t := &Trouble{What: cannot[0].Cannot}
	for _, c := range cannot[1:] {
		t.Because = append(t.Because, "also: "+c.Cannot)
	}
	for _, c := range cannot {
		t.Try = append(t.Try, c.Try...)
	}
	t.Because = append(t.Because, "nothing was touched")
	return t
}

// bootID names the present boot; "" in a root folder, which never boots.
func bootID(v host.View) string {
	if !v.Live() {
		return ""
	}
	id, err := v.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
