// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

type states = map[string]converge.State

// TestPlan: a plan has the changes from the state found to the desired state, and touches nothing.
func TestPlan(t *testing.T) {
	box := newToybox(t, states{"a": "red", "b": "red"})
	e := box.engine(stage("toys", box.want("block", "a", "blue"), box.want("block", "b", "red")))
	p := must.Get(e.Plan(t.Context(), box.View()))(t)

	must.That(t, len(p.Changes) == 1, "the plan has %d changes, want 1", len(p.Changes))
	c := p.Changes[0]
	check.Equal(t, c.String()+" "+string(c.Before)+" "+string(c.After), "block a red blue", "the change:")
	check.Equal(t, p.Converged, 1, "converged wants:")
	check.Equal(t, box.String(), "a=red b=red", "after a plan:")
}

// TestApply: an apply makes what differs, and a second one has nothing to do.
func TestApply(t *testing.T) {
	box := newToybox(t, states{"a": "red"})
	toys := stage("toys", box.want("block", "a", "blue"), box.want("block", "b", "blue"))

	first := box.apply(t, toys)
	check.Equal(t, box.String(), "a=blue b=blue", "after an apply:")
	check.Equal(t, len(first.Made), 2, "changes made:")

	box.made = nil
	second := box.apply(t, toys)
	check.Equal(t, second.Run, "", "the second apply began run:")
	check.List(t, box.made, nil, "the second apply made")
}

// TestVerify: an apply looks again after each change, and fails if the state is another one.
func TestVerify(t *testing.T) {
	box := newToybox(t, nil)
	w := box.want("block", "a", "blue")
	w.Thing = careless{block{box, "a"}}
	_, err := box.engine(stage("toys", w)).Apply(t.Context(), box)
	must.That(t, err != nil, "an apply that made nothing succeeded")
	check.Has(t, err.Error(), `wanted "blue", found "" afterwards`, "the error")
}

// TestOrder: the things of a Batch are made at once, and a Follower is made current last, but only
// if a change affects it.
func TestOrder(t *testing.T) {
	box := newToybox(t, states{"robot": "current"})
	wants := []converge.Want{
		box.want("robot", "robot", ""),
		box.want("car", "x", "fast"),
		box.want("block", "a", "blue"),
		box.want("car", "y", "fast"),
	}
	box.apply(t, stage("toys", wants...))
	check.List(t, box.made, []string{"a", "x+y"}, "made")

	box.made = nil
	box.apply(t, stage("toys", append(wants, box.bead("chain", "mine"))...))
	check.List(t, box.made, []string{"chain", "robot"}, "made with a change that affects the robot:")
	check.Equal(t, box.toys["robot"], "current", "the robot:")
}

// TestRollBack: a stage that fails is rolled back, last change first; earlier stages stay.
func TestRollBack(t *testing.T) {
	box := newToybox(t, states{"b": "red"})
	box.broken = "d"
	var back []string
	e := box.engine(
		stage("first", box.want("block", "a", "blue")),
		stage("second",
			box.want("block", "b", "blue"), box.want("block", "c", "blue"), box.want("block", "d", "blue")),
	)
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.RolledBack {
			back = append(back, ev.Line.Name)
		}
	}

	_, err := e.Apply(t.Context(), box)
	must.That(t, err != nil, "an apply of a broken toy succeeded")
	check.Has(t, err.Error(), "cannot make block d: it is broken", "the error")
	check.Equal(t, box.String(), "a=blue b=red", "after the roll-back:")
	check.List(t, back, []string{"c", "b"}, "rolled back")
}

// TestRefuse: an apply touches nothing if it cannot make all changes.
func TestRefuse(t *testing.T) {
	box := newToybox(t, nil)
	impossible := box.want("block", "b", "")
	impossible.To = func(converge.State) (converge.State, error) { return "", errNoPaint }
	_, err := box.engine(stage("toys", box.want("block", "a", "blue"), impossible)).Apply(t.Context(), box)
	must.That(t, err != nil, "an apply that cannot make a change succeeded")
	check.Has(t, err.Error(), "no paint", "the error")
	check.List(t, box.made, nil, "a refused apply made")
}

// A hidden block cannot be looked at.
type hidden struct{ block }

func (hidden) Look(context.Context, host.View) (converge.State, error) {
	return "", errors.New("it is dark")
}

// TestRefuseBesideUnknown: an operator has to act on a change that cannot be made, also where
// another state could not be read, for which the same command may simply be run again.
func TestRefuseBesideUnknown(t *testing.T) {
	box := newToybox(t, states{})
	unseen := box.want("block", "a", "blue")
	unseen.Thing = hidden{block{box, "a"}}
	impossible := box.want("block", "b", "")
	impossible.To = func(converge.State) (converge.State, error) { return "", errNoPaint }

	_, err := box.engine(stage("toys", unseen)).Apply(t.Context(), box)
	check.That(t, trouble.IsUnknown(err), "a state that could not be read: %v", err)
	_, err = box.engine(stage("toys", unseen, impossible)).Apply(t.Context(), box)
	check.That(t, err != nil && !trouble.IsUnknown(err), "beside a change that cannot be made: %v", err)
}

// A noisy block cannot find out what a change of it interrupts.
type noisy struct {
	block
	why error
}

func (k noisy) Breaks(
	context.Context, host.View, converge.State, converge.State,
) ([]string, map[string][]string, error) {
	return nil, nil, k.why
}

// TestInterruptsUnknown: where a reader fails that says what a change interrupts, it is unknown
// whether the change may be made: nothing is touched, and the same command may simply be run again.
// What the thing has found out is an operator's.
func TestInterruptsUnknown(t *testing.T) {
	for _, c := range []struct {
		why       error
		isUnknown bool
	}{
		{errors.New("kubelet does not list its pods"), true},
		{&trouble.Error{What: "cannot stop what uses the toy"}, false},
	} {
		box := newToybox(t, states{})
		loud := box.want("block", "b", "blue")
		loud.Thing = noisy{block{box, "b"}, c.why}
		e := box.engine(stage("toys", box.want("block", "a", "blue"), loud))

		p := must.Get(e.Plan(t.Context(), box.View()))(t)
		check.Equal(t, p.State == converge.EndsUnknown, c.isUnknown, "%v: a plan ends as unknown:", c.why)
		_, err := e.Apply(t.Context(), box)
		check.That(t, err != nil && trouble.IsUnknown(err) == c.isUnknown, "%v: an apply: %v", c.why, err)
		check.List(t, box.made, nil, "an apply made")
	}
}

// TestUndo: undo restores the oldest state of each thing, the last touched first, and then holds
// unattended applies.
func TestUndo(t *testing.T) {
	box := newToybox(t, states{"a": "red"})
	box.apply(t, stage("toys", box.want("block", "a", "blue"), box.want("car", "x", "fast")))
	blue := stage("toys", box.want("block", "a", "green"), box.want("car", "x", "slow"))
	box.apply(t, blue)
	must.That(t, box.String() == "a=green x=slow", "two applies ended in %s", box)

	box.made = nil
	box.undo(t)
	check.Equal(t, box.String(), "a=red", "after an undo:")
	check.List(t, box.made, []string{"x", "a"}, "undone")

	boot := box.engine(blue)
	boot.Unattended = true
	held := must.Get(boot.Apply(t.Context(), box))(t)
	check.That(t, held.Held != "", "an undo does not hold unattended applies")
	check.Equal(t, box.String(), "a=red", "after an unattended apply:")
}

// TestPerishable: what a Follower takes away is as before the run once that run is undone or rolled
// back, also where the undo was cut short.
func TestPerishable(t *testing.T) {
	keep := func(box *toybox, bead, castle string) []converge.Stage {
		return []converge.Stage{
			stage("chains", box.bead("chain", bead), box.want("robot", "robot", "")),
			stage("castles", box.want("castle", "castle", converge.State(castle)), box.want("block", "flag", "up")),
		}
	}

	for _, second := range []string{"low", "high"} {
		box := newToybox(t, states{"robot": "current"})
		box.apply(t, keep(box, "one", "low")...)
		before := box.String()
		box.apply(t, keep(box, "two", second)...)
		box.made = nil
		must.Get(box.engine().Undo(t.Context(), box, "", nil))(t)
		check.That(t, box.String() == before, "from a %s castle: undo ended in %s, want %s", second, box, before)
		check.List(t, box.made, []string{"chain", "robot", "castle"}, "undone")

		box.apply(t, keep(box, "two", second)...)
		box.broken = "castle"
		_, err := box.engine().Undo(t.Context(), box, "", nil)
		must.That(t, err != nil, "an undo that cannot build the castle succeeded")
		box.broken = ""
		box.undo(t)
		check.Equal(t, box.String(), "robot=current", "all is undone after an undo that failed:")
	}

	box := newToybox(t, states{"robot": "current"})
	box.apply(t, keep(box, "one", "low")...)
	box.broken = "robot"
	_, err := box.engine(keep(box, "two", "low")...).Apply(t.Context(), box)
	must.That(t, err != nil, "an apply with a broken robot succeeded")
	check.Equal(t, box.toys["castle"], "low", "the castle after the roll-back:")
}

// TestShrunkSpec: an apply restores a thing that its section no longer asks for.
func TestShrunkSpec(t *testing.T) {
	box := newToybox(t, states{"a": "red"})
	box.apply(t, stage("toys", box.want("block", "a", "blue"), box.want("block", "b", "blue")))
	box.apply(t, stage("toys", box.want("block", "b", "blue")))
	check.Equal(t, box.String(), "a=red b=blue", "after an apply without a:")
}

// TestForeignEdit: undo takes gpuadm's part out of what another process has changed since. Where
// it cannot tell the parts apart, it touches nothing, unless the operator leaves that thing.
func TestForeignEdit(t *testing.T) {
	box := newToybox(t, states{"chain": "before", "robot": "current"})
	toys := stage("toys",
		box.want("block", "a", "blue"), box.bead("chain", "mine"), box.want("robot", "robot", ""))
	box.apply(t, toys)
	box.made = nil
	box.toys["chain"] = "before,mine,after"
	box.toys["a"] = "striped"

	_, err := box.engine().Undo(t.Context(), box, "all", nil)
	must.That(t, err != nil, "undo lost the edit of another process")
	check.Has(t, err.Error(), "cannot undo block a: it was changed outside gpuadm", "the error")
	check.List(t, box.made, nil, "a refused undo made")

	result := must.Get(box.engine().Undo(t.Context(), box, "all", []string{"a"}))(t)
	want := "a=striped chain=before,after robot=current"
	check.Equal(t, box.String(), want, "after an undo that leaves a:")
	check.Equal(t, len(result.Left), 1, "things left:")
}

// TestUndoneReboot: a plan names the reboot that a run of this boot has asked for, until that run
// is undone.
func TestUndoneReboot(t *testing.T) {
	box := newToybox(t, states{"a": "red"})
	toys := stage("toys", box.want("block", "a", "blue"))
	box.broken = "a"
	box.why = host.Reboot{Why: "the paint dries"}
	result := box.apply(t, toys)
	check.Equal(t, result.Reboot, "the paint dries", "the apply asks for a reboot:")
	p := must.Get(box.engine(toys).Plan(t.Context(), box.View()))(t)
	check.Equal(t, p.Reboot, "block a", "a plan names a reboot for")

	box.undo(t)
	p = must.Get(box.engine(toys).Plan(t.Context(), box.View()))(t)
	check.Equal(t, p.Reboot, "", "once the run is undone, a plan names a reboot for")
}

// TestFollowersReboot: a plan names the reboot that a Follower has asked for, also where the run has
// changed nothing else that undo could revert.
func TestFollowersReboot(t *testing.T) {
	box := newToybox(t, states{"robot": "outdated"})
	toys := stage("toys", converge.Following(robot{block{box, "robot"}}, ""))
	box.broken = "robot"
	box.why = host.Reboot{Why: "its battery is glued in"}
	must.Get(box.engine(toys).Apply(t.Context(), box))(t)

	p := must.Get(box.engine(toys).Plan(t.Context(), box.View()))(t)
	check.Equal(t, p.Reboot, "robot robot", "a plan names a reboot for")
}

// A stubborn robot would not start again with its present chain.
type stubborn struct{ robot }

func (stubborn) Make(context.Context, host.Host, converge.State) error {
	return converge.DoesNotStart{Runs: true, Err: errors.New("the chain has no end")}
}

// TestUndoButTheRestart: an undo that continues another one, and fails for a daemon that would not
// start again, is rolled back; the command that it prints undoes the same runs, and leaves the
// same.
func TestUndoButTheRestart(t *testing.T) {
	box := newToybox(t, states{"robot": "current"})
	first := box.apply(t, stage("blocks", box.want("block", "a", "blue"), box.want("block", "b", "blue")))
	box.apply(t,
		stage("blocks", box.want("block", "a", "blue"), box.want("block", "b", "blue")),
		stage("chains", box.bead("chain", "mine"), box.want("robot", "robot", "")))

	cut := box.engine()
	stop := make(chan struct{})
	close(stop)
	cut.Stop = stop
	_, err := cut.Undo(t.Context(), box, "all", []string{"a"})
	must.That(t, errors.Is(err, converge.ErrStopped), "an undo that was stopped: %v", err)

	e := box.engine()
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "robot" {
			return stubborn{robot{block{box, ref.Name}}}, nil
		}
		return box.kind(ref)
	}
	_, err = e.Undo(t.Context(), box, "", nil)
	var failed *trouble.Error
	must.That(t, errors.As(err, &failed), "an undo with a robot that does not start: %v", err)
	want := converge.UndoOf(first.Run, []string{"a", "robot robot"})
	check.Has(t, strings.Join(failed.Try, "\n"), want, "the advice")
}

// A sleeper is a Sweeper: it stops the motor while it is made, and is killed then.
type sleeper struct{ robot }

func (k sleeper) Make(_ context.Context, h host.Host, _ converge.State) error {
	delete(k.box.toys, "motor")
	k.box.CutAt(k.box.Touches())
	return h.Remove("/etc/hostname")
}

func (k sleeper) Sweep(_ context.Context, h host.Host, _ converge.State) (found bool, err error) {
	if k.box.toys["battery"] == "low" { // it is killed once
		delete(k.box.toys, "battery")
		k.box.CutAt(k.box.Touches())
		return false, h.Remove("/etc/hostname")
	}
	found = k.box.toys["motor"] == ""
	k.box.toys["motor"] = "on"
	return found, nil
}

// TestSweepsWhatUndoLeaves: undo of a run that was killed starts again what the run had stopped for
// a Follower, also where none of the changes that it reverts affects that Follower, and where the
// first undo is killed meanwhile.
func TestSweepsWhatUndoLeaves(t *testing.T) {
	box := newToybox(t, states{"motor": "on", "robot": "outdated"})
	e := box.engine()
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "robot" {
			return sleeper{robot{block{box, ref.Name}}}, nil
		}
		return box.kind(ref)
	}
	awake := converge.Following(sleeper{robot{block{box, "robot"}}}, "")
	e.Stages = []converge.Stage{stage("toys", box.want("block", "a", "blue"), awake)}
	_, err := e.Apply(t.Context(), box)
	must.That(t, err != nil && box.String() == "a=blue robot=outdated", "killed: %v, %s", err, box)

	box.Revive()
	box.toys["battery"] = "low"
	_, err = e.Undo(t.Context(), box, "all", nil)
	must.That(t, err != nil, "the undo was not killed")

	box.Revive()
	must.Get(e.Undo(t.Context(), box, "all", nil))(t)
	check.Equal(t, box.String(), "motor=on robot=outdated", "after the undo:")
}

// TestObstacleBesideUnknown: an operator has to act on what an undo cannot tell apart, also where
// another state could not be read.
func TestObstacleBesideUnknown(t *testing.T) {
	box := newToybox(t, states{})
	box.apply(t, stage("toys", box.want("block", "a", "blue"), box.want("block", "b", "blue")))
	box.toys["b"] = "striped"
	e := box.engine()
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Name == "a" {
			return hidden{block{box, ref.Name}}, nil
		}
		return box.kind(ref)
	}

	_, err := e.Undo(t.Context(), box, "all", nil)
	must.That(t, err != nil, "undo lost the edit of another process")
	check.That(t, !trouble.IsUnknown(err), "beside what it cannot tell apart: %v", err)

	box.toys["b"] = "blue"
	_, err = e.Undo(t.Context(), box, "all", nil)
	check.That(t, trouble.IsUnknown(err), "a state that could not be read alone: %v", err)
}

// TestResume: whenever the power is cut, the next apply ends in the state of an uninterrupted one,
// and undo then ends in the first state.
func TestResume(t *testing.T) {
	first := states{"a": "red", "chain": "before", "robot": "current"}
	toysOf := func(box *toybox) converge.Stage {
		return stage("toys",
			box.want("block", "a", "blue"), box.want("car", "x", "fast"), box.want("car", "y", "fast"),
			box.bead("chain", "mine"), box.want("robot", "robot", ""))
	}

	whole := newToybox(t, first)
	whole.apply(t, toysOf(whole))

	for cut := range whole.Touches() {
		box := newToybox(t, first)
		box.CutAt(cut)
		_, err := box.engine(toysOf(box)).Apply(t.Context(), box)
		must.That(t, err != nil, "the power was not cut at touch %d", cut)

		box.Reboot()
		box.apply(t, toysOf(box))
		check.Equal(t, box.String(), whole.String(), "cut at touch %d, then applied:", cut)
		box.undo(t)
		want := "a=red chain=before robot=current"
		check.Equal(t, box.String(), want, "cut at touch %d, applied and undone:", cut)
	}
}

// TestSweepsPlaceholders: a run removes the files that a killed bake of this machine has left, and
// no empty file of the machine's own.
func TestSweepsPlaceholders(t *testing.T) {
	box := newToybox(t, states{"a": "blue"})
	const left, own = "/usr/sbin/policy-rc.d", "/etc/resolv.conf"
	must.OK(t, box.Mkdir("/usr/sbin", host.Attr{Mode: 0o755}))
	must.OK(t, box.WriteFile(left, nil, host.Attr{Mode: host.PlaceholderMode}))
	must.OK(t, box.WriteFile(own, nil, host.Attr{Mode: 0o644}))

	box.apply(t, stage("toys", box.want("block", "a", "blue")))
	_, err := box.Lstat(left)
	check.That(t, errors.Is(err, fs.ErrNotExist), "%s is left: %v", left, err)
	_, err = box.Lstat(own)
	check.That(t, err == nil, "%s is gone: %v", own, err)
}

// TestWholeBesideAnotherKernel: what an earlier stage waits to make for a kernel that does not run
// keeps no stage from being made or from being converged.
func TestWholeBesideAnotherKernel(t *testing.T) {
	box := newToybox(t, states{})
	modules := box.want("block", "modules", "")
	modules.To = func(converge.State) (converge.State, error) {
		return "", host.Later{Until: "once kernel 6.8.0-3 has headers", When: host.AnotherKernel}
	}
	ready := stage("ready", box.want("block", "flag", "up"))
	ready.Whole = true
	stages := []converge.Stage{stage("modules", modules), ready}

	result := box.apply(t, stages...)
	check.Equal(t, box.String(), "flag=up", "after an apply:")
	check.Equal(t, len(result.Deferred), 1, "deferred:")
	p := must.Get(box.engine(stages...).Plan(t.Context(), box.View()))(t)
	check.Equal(t, p.State, converge.EndsDeferred, "a plan after it:")
}

// TestCompaction: a journal does not grow without end, and undo still knows the first state.
func TestCompaction(t *testing.T) {
	box := newToybox(t, states{"a": "red"})
	most := 0
	for range 150 {
		for _, colour := range []converge.State{"blue", "green"} {
			box.apply(t, stage("toys", box.want("block", "a", colour)))
		}
		most = max(most, len(converge.ReadJournal(box).Records))
	}

	check.That(t, most < 300, "the journal of 300 runs has %d records", most)

	runs := converge.ReadJournal(box).Runs()
	inOrder := slices.IsSortedFunc(runs, func(a, b converge.Run) int {
		return a.Time.Compare(b.Time)
	})
	check.That(t, inOrder, "the runs are not in order")
	box.undo(t)
	check.Equal(t, box.String(), "a=red", "after undoing all runs:")
}

// TestCompactionKeepsFound: undo still restores what a Follower of the first run took away from the
// state that an operator had left, once the journal has been compacted.
func TestCompactionKeepsFound(t *testing.T) {
	box := newToybox(t, states{"castle": "low", "robot": "current"})
	for i := range 100 {
		box.apply(t,
			stage("chains", box.bead("chain", "mine"), box.want("robot", "robot", "")),
			stage("castles", box.want("castle", "castle", "high")),
			stage("flags", box.want("block", "flag", []converge.State{"up", "down"}[i%2])),
		)
	}
	records := len(converge.ReadJournal(box).Records)
	must.That(t, records < 250, "the journal has %d records: it is not compacted", records)

	box.undo(t)
	check.Equal(t, box.String(), "castle=low robot=current", "after undoing all runs:")
}

// TestReleasedDependency: what a section brought stays when the section is released, whatever
// another section of the stage changes. While the section is in the spec, it goes once nothing
// needs it.
func TestReleasedDependency(t *testing.T) {
	for _, released := range []bool{false, true} {
		box := newToybox(t, map[string]converge.State{})
		steam := box.want("train", "steam", "under steam")
		steam.Section = "driver"
		tram := box.want("train", "tram", "new")
		tram.Section = "toolkit"

		first := box.engine(stage("trains", steam))
		first.Spec.Sections = []string{"driver"}
		must.Get(first.Apply(t.Context(), box))(t)
		check.Equal(t, box.String(), "steam=under steam wagon=blue", "the first apply")

		second := box.engine(stage("trains", steam, tram))
		second.Spec.Sections = []string{"driver", "toolkit"}
		want := "steam=under steam tram=new"
		if released {
			second = box.engine(stage("trains", tram))
			second.Spec.Sections = []string{"toolkit"}
			want = "steam=under steam tram=new wagon=blue"
		}

		must.Get(second.Apply(t.Context(), box))(t)
		check.Equal(t, box.String(), want, "the second apply, released %v", released)

		box.undo(t)
		check.Equal(t, box.String(), "", "undo, released %v", released)
	}
}
