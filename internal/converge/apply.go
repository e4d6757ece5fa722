// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
)

// Apply converges the machine. It plans all stages first, and touches nothing if any change cannot
// be made. Then it plans each stage again when its turn comes. It journals every change before it
// makes it, and verifies it afterwards. When a change fails, it rolls back what this run changed
// for the stage. An unattended apply first finishes an undo that was cut short; an operator's apply
// supersedes that undo. A repair is an apply of one stage without a section in the spec: it lifts
// no hold, and a later apply leaves what it made, since the stage is not in the sequence.
func (e *Engine) Apply(ctx context.Context, h host.Host) (Result, error) {
	res, err := e.apply(ctx, h)
	if i := slices.IndexFunc(res.Deferred, func(c Change) bool { return c.When == host.AfterReboot }); i >= 0 && res.Reboot == "" {
		res.Reboot = res.Deferred[i].Why
		e.tell(Event{Time: h.Now(), What: Reboots, Text: res.Reboot})
	}
	return res, e.untilIdle(err)
}

func (e *Engine) apply(ctx context.Context, h host.Host) (Result, error) {
	r, unlock, err := e.resume(h)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	ctx = r.listen(ctx)
	if e.Unattended {
		if res, done, err := r.unattended(ctx); done || err != nil {
			return res, err
		}
	}
	r.prune(ctx) // before all else, since a full disk may be why the last run failed
	now := view.Snapshot(h)
	f, err := r.gathered(ctx, now)
	if err != nil {
		return Result{}, err
	}
	plan, err := e.plan(ctx, now, r.j, f, func(s step, _ host.View) Change { return s.Change }) // a run shows what it makes, when it makes it
	if err != nil {
		return Result{}, err
	}
	if err := refuse(plan); err != nil {
		return Result{Stage: plan.Cannot()[0].Stage}, err
	}
	if err := e.consent(ctx, h, plan.Changes); err != nil {
		return Result{}, err
	}
	e.cache.Keep(h)
	if plan.Now() == 0 {
		if err := r.nothingToMake(); err != nil {
			return Result{}, err
		}
		e.tell(Event{Time: h.Now(), What: Nothing, Text: fmt.Sprint(plan.Converged)})
		res := Result{Deferred: plan.Changes}
		if r.open {
			res.Changed = r.cut.countChanged()
		}
		return res, waiting(plan.Changes)
	}
	if err := r.refuseDowngrade(); err != nil {
		return Result{}, err
	}
	if err := r.begin(nil, 0); err != nil {
		return Result{}, err
	}
	if r.j.Held() != "" && r.Repair == "" {
		if err := r.j.write(h, Record{What: "lift", Run: r.id}); err != nil {
			return r.end(err)
		}
	}
	err = r.stages(ctx)
	r.Restores, r.Changed = r.journalled().restores(), r.journalled().countChanged()
	if err != nil || !r.newProcess() {
		if result, err := r.end(err); err != nil {
			return result, err
		}
	}
	return r.Result, waiting(r.Deferred)
}

// unattended finishes an undo that was cut short. done says that the apply ends with that, or
// leaves the machine as it is.
func (r *run) unattended(ctx context.Context) (res Result, done bool, err error) {
	var undone Result
	if r.open && len(r.cut.Undoes) > 0 {
		if undone, err = r.undo(ctx, "", nil); err != nil || undone.Reboot != "" || r.newProcess() {
			return undone, true, err
		}
	}
	if held := r.j.Held(); held != "" {
		r.tell(Event{Time: r.h.Now(), What: Held, Text: held})
		return Result{Undone: undone.Made, Changed: undone.Changed, Held: held}, true, nil
	}
	// This is no failure: the gate has to open, since the newer gpuadm may be a DaemonSet's, which
	// starts after kubelet. It comes before the plan, which may not understand what the newer
	// gpuadm made.
	if newer := r.LeavesTo(r.j); newer != "" {
		r.tell(Event{Time: r.h.Now(), What: Newer, Text: newer})
		return Result{Undone: undone.Made, Changed: undone.Changed, Newer: newer}, true, nil
	}
	return Result{}, false, nil
}

// nothingToMake ends an apply that has nothing to make: it lifts a hold, and closes a run that was
// cut short.
func (r *run) nothingToMake() error {
	if r.j.Newer > 0 || r.Repair != "" && r.Repair != r.cut.Repair {
		return nil
	}
	if r.j.Held() != "" && r.Repair == "" {
		if err := r.j.write(r.h, Record{What: "lift"}); err != nil {
			return err
		}
	}
	if !r.open {
		return nil
	}
	result := "ok"
	if len(r.cut.Undoes) > 0 || !r.covers(r.cut) || r.cut.rollingBack() { // its last changes may not have been made
		result = overtaken
	}
	return r.j.write(r.h, Record{What: "end", Run: r.cut.ID, Result: result})
}

func (r *run) stages(ctx context.Context) error {
	for _, st := range r.Stages {
		if r.stopped() {
			return ErrStopped
		}
		if err := r.stage(ctx, st); err != nil {
			return err
		}
		if st.Holds && slices.ContainsFunc(r.Deferred, func(c Change) bool { return c.Stage == st.Name && c.Waits != "" }) {
			return nil
		}
	}
	return nil
}

// stage makes one stage's changes. Followers come last.
func (r *run) stage(ctx context.Context, st Stage) error {
	r.at = st.Name
	f, err := r.gathered(ctx, r.h)
	var steps []step
	mine := present(r.j.Runs())
	if err == nil {
		steps, err = r.planStage(ctx, r.h, st, f, mine)
	}
	if err == nil && st.Whole && !allDeferred(steps) && !cannotBeMade(steps) {
		var o unconverged
		if o, err = r.before(ctx, r.h, st, f, mine, nil); err == nil {
			err = o.trouble(st.Name)
		}
	}
	if err == nil && !slices.ContainsFunc(steps, func(s step) bool { return !s.converged() }) {
		r.event(Event{Stage: st.Name, What: AllConverged, Text: fmt.Sprint(len(steps))})
		return nil
	}
	if err == nil {
		err = r.walk(ctx, steps)
	}
	if err == nil || pauses(err) {
		return err
	}
	if !slices.ContainsFunc(r.j.Records, func(o Record) bool { return o.Run == r.id && o.What == "make" }) {
		return err
	}
	return r.rollBack(ctx, err, r.verifiedBy(st)) // which also names the earlier stages whose changes remain
}

// gathered returns the machine's facts. They are gathered again once this run has changed
// something.
func (r *run) gathered(ctx context.Context, v host.View) (facts.Facts, error) {
	if r.facts != nil {
		return *r.facts, nil
	}
	f, err := r.Facts(ctx, v)
	if err == nil {
		r.facts = &f
	}
	return f, err
}

// verifiedBy says which stages are rolled back if st fails: st itself, and those that it verifies.
func (r *run) verifiedBy(st Stage) func(stage string) bool {
	names := []string{st.Name}
	for st.Verifies != "" {
		names = append(names, st.Verifies)
		i := slices.IndexFunc(r.Stages, func(s Stage) bool { return s.Name == st.Verifies })
		if i < 0 {
			break
		}
		st = r.Stages[i]
	}
	return func(stage string) bool { return slices.Contains(names, stage) }
}

// refuse returns an error that names the changes that cannot be made; nil if all can.
func refuse(p Plan) error {
	t := reasons(p.Cannot())
	if t == nil {
		return nil
	}
	t.Because = append(t.Because, nothingTouched)
	return t
}
