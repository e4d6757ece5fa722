// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"
	"slices"

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
	result, err := e.apply(ctx, h)
	afterReboot := slices.IndexFunc(result.Deferred, isAfterReboot)
	if result.Reboot == "" && afterReboot >= 0 {
		result.Reboot = result.Deferred[afterReboot].Why
		e.tell(Event{Time: h.Now(), What: Reboots, Text: result.Reboot})
	}
	return result, e.untilIdle(err)
}

func (e *Engine) apply(ctx context.Context, h host.Host) (Result, error) {
	r, unlock, err := e.resume(h)
	if err != nil {
		return Result{}, err
	}
	defer unlock()

	ctx = r.listen(ctx)
	if e.Unattended {
		result, done, err := r.unattended(ctx)
		if done || err != nil {
			return result, err
		}
	}

	r.prune(ctx) // before all else, since a full disk may be why the last run failed

	plan, err := r.plan(ctx)
	if err != nil {
		return Result{}, err
	}
	refused := cannotFirst(plan.refused())
	if err := refuse(refused); err != nil {
		return Result{Stage: refused[0].Stage}, err
	}
	if err := r.consent(ctx, plan.Changes); err != nil {
		return Result{}, err
	}

	e.cache.Keep(h)
	result, err := r.makeAll(ctx, plan)
	if err == nil {
		r.keepSpec(result)
	}
	return result, err
}

// makeAll makes what a plan has to make.
func (r *run) makeAll(ctx context.Context, plan Plan) (Result, error) {
	if plan.Now() == 0 {
		return r.nothingToMake(plan)
	}

	if err := r.refuseDowngrade(); err != nil {
		return Result{}, err
	}
	r.found = plan.found
	if err := r.begin(nil, 0); err != nil {
		return Result{}, err
	}
	return r.makePlan(ctx)
}

// unattended finishes an undo that was cut short. done says that the apply ends with that, or
// leaves the machine as it is.
func (r *run) unattended(ctx context.Context) (result Result, done bool, err error) {
	var undone Result
	if r.open && len(r.cut.Undoes) > 0 {
		undone, err = r.undo(ctx, "", nil)
		if err != nil || undone.Reboot != "" || r.needsNewProcess() {
			return undone, true, err
		}
	}

	result = Result{Undone: undone.Made, Changed: undone.Changed}

	held := r.journal.Held()
	if held != "" {
		r.engine.tell(Event{Time: r.host.Now(), What: Held, Text: held})
		result.Held = held
		return result, true, nil
	}

	// This is not a failure: the gate has to open, since the newer gpuadm may be a DaemonSet's,
	// which starts after kubelet. It comes before the plan, which may not understand what the newer
	// gpuadm made.
	newer := r.engine.LeavesTo(r.journal)
	if newer != "" {
		r.engine.tell(Event{Time: r.host.Now(), What: Newer, Text: newer})
		result.Newer = newer
		return result, true, nil
	}

	return Result{}, false, nil
}

// plan plans all stages. The changes have no diffs: a run shows what it makes, when it makes it.
func (r *run) plan(ctx context.Context) (Plan, error) {
	v := view.Snapshot(r.host)
	f, err := r.currentFacts(ctx, v)
	if err != nil {
		return Plan{}, err
	}

	if !r.continues(nil) {
		r.first = &f
	}
	m := machine{view: v, facts: f, owned: present(r.journal.Runs())}
	return r.engine.plan(ctx, m, func(s step) Line { return s.Line })
}

// nothingToMake ends an apply that has nothing to make.
func (r *run) nothingToMake(plan Plan) (Result, error) {
	if err := r.settle(); err != nil {
		return Result{}, err
	}

	r.engine.tell(Event{
		Time: r.host.Now(),
		What: Nothing,
		Text: fmt.Sprint(plan.Converged),
	})
	result := Result{Deferred: plan.Changes}
	if r.open {
		result.Changed = r.cut.countChanged()
	}
	return result, waiting(plan.Changes)
}

// settle lifts a hold, and closes a run that was cut short.
func (r *run) settle() error {
	otherRepair := r.engine.Repair != "" && r.engine.Repair != r.cut.Repair
	if r.journal.Newer > 0 || otherRepair {
		return nil
	}
	if err := r.lift(Record{What: "lift"}); err != nil {
		return err
	}
	if !r.open {
		return nil
	}

	result := "ok"
	if len(r.cut.Undoes) > 0 || !r.coversCut() || r.cut.rollingBack() {
		result = overtaken // its last changes may not have been made
	}
	return r.write(Record{What: "end", Run: r.cut.ID, Result: result})
}

// lift lifts the hold of an undo, if one holds. A repair lifts none.
func (r *run) lift(rec Record) error {
	if r.journal.Held() == "" || r.engine.Repair != "" {
		return nil
	}
	return r.write(rec)
}

// makePlan makes the changes of all stages, and ends the run.
func (r *run) makePlan(ctx context.Context) (Result, error) {
	if err := r.lift(Record{What: "lift", Run: r.id}); err != nil {
		return r.end(err)
	}

	err := r.makeStages(ctx)
	r.result.Restores = r.journalled().restores()
	r.result.Changed = r.journalled().countChanged()
	if err != nil || !r.needsNewProcess() {
		_, err = r.end(err)
	}
	if err != nil {
		return r.result, err
	}
	return r.result, waiting(r.result.Deferred)
}

// makeStages makes the stages in their order. It ends after a stage that holds the later ones back.
func (r *run) makeStages(ctx context.Context) error {
	for _, st := range r.engine.Stages {
		if r.stopped() {
			return ErrStopped
		}
		if err := r.makeStage(ctx, st); err != nil {
			return err
		}

		waits := func(c Line) bool {
			return c.Stage == st.Name && (c.Waits != "" || c.Unknown != "")
		}
		if st.Holds && slices.ContainsFunc(r.result.Deferred, waits) {
			break
		}
	}
	return nil
}

// makeStage makes one stage's changes. If it fails, it rolls back what the run has changed for the
// stage.
func (r *run) makeStage(ctx context.Context, st Stage) error {
	r.stage = st.Name
	err := r.tryStage(ctx, st)
	if err == nil || pauses(err) {
		return err
	}

	hasMade := func(rec Record) bool { return rec.Run == r.id && rec.What == "make" }
	if !slices.ContainsFunc(r.journal.Records, hasMade) {
		return err
	}
	return r.rollBack(ctx, err, r.verifiedBy(st)) // which also names the earlier stages whose changes remain
}

// tryStage plans one stage again, and makes its changes. Followers come last.
func (r *run) tryStage(ctx context.Context, st Stage) error {
	f, err := r.currentFacts(ctx, r.host)
	if err != nil {
		return err
	}

	m := machine{view: r.host, facts: f, owned: present(r.journal.Runs())}
	steps, err := r.engine.planStage(ctx, m, st)
	if err != nil {
		return err
	}

	if st.Whole {
		if err := r.engine.mayMakeWhole(ctx, m, st, steps); err != nil {
			return err
		}
	}

	isPending := func(s step) bool { return !s.converged() }
	if !slices.ContainsFunc(steps, isPending) {
		r.event(Event{
			Stage: st.Name,
			What:  AllConverged,
			Text:  fmt.Sprint(len(steps)),
		})
		return nil
	}

	return r.walk(ctx, steps)
}

// verifiedBy says which stages are rolled back if st fails: st itself, and those that it verifies.
func (r *run) verifiedBy(st Stage) func(stage string) bool {
	names := []string{st.Name}
	for st.Verifies != "" {
		names = append(names, st.Verifies)
		i := r.engine.order(st.Verifies)
		if i < 0 {
			break
		}
		st = r.engine.Stages[i]
	}

	return func(stage string) bool { return slices.Contains(names, stage) }
}
