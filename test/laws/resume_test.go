// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// proving is two stages: what the first writes shows its worth in the second, which fails as long
// as bad says so.
func proving(t testing.TB, bad *bool) *converge.Engine {
	stageNamed := func(name, proves string, wants ...converge.Want) converge.Stage {
		return converge.Stage{
			Name:     name,
			Verifies: proves,
			Wants:    func(spec.Spec, facts.Facts) ([]converge.Want, error) { return wants, nil },
		}
	}

	e := engineOf(t,
		stageNamed("driver", "", things.Exact("/srv/one", []byte("ours\n"), 0o644, ""), things.Exact("/srv/two", []byte("ours\n"), 0o644, "")),
		stageNamed("modules", "driver", things.Exact("/srv/three", []byte("ours\n"), 0o644, ""), converge.Want{
			Thing: mayFail{bad},
			To:    to("done"),
		}))
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "may-fail" {
			return mayFail{bad}, nil
		}
		return kinds(ref)
	}

	return e
}

// mayFail cannot be made while bad.
type mayFail struct{ bad *bool }

func (mayFail) Ref() converge.Ref { return converge.Ref{Kind: "may-fail", Name: "x"} }

func (mayFail) Look(_ context.Context, v host.View) (converge.State, error) {
	if _, err := v.Stat("/srv/done"); err != nil {
		return "", nil
	}
	return "done", nil
}

func (m mayFail) Make(_ context.Context, h host.Host, to converge.State) error {
	switch {
	case *m.bad:
		return errors.New("the module does not load")
	case to == "":
		return h.Remove("/srv/done")
	}
	return h.WriteFile("/srv/done", nil, host.Attr{Mode: 0o644})
}

// Where a stage proves one that proves another, all three are rolled back if the last fails: they
// make one desired state.
func TestProofsAreRolledBackInARow(t *testing.T) {
	bad := true
	stageNamed := func(name, proves string, wants ...converge.Want) converge.Stage {
		return converge.Stage{
			Name:     name,
			Verifies: proves,
			Wants:    func(spec.Spec, facts.Facts) ([]converge.Want, error) { return wants, nil },
		}
	}

	n := node(t)
	first := n.Tree(converge.Home)
	e := engineOf(t,
		stageNamed("other", "", things.Exact("/srv/four", []byte("ours\n"), 0o644, "")),
		stageNamed("sources", "", things.Exact("/srv/one", []byte("ours\n"), 0o644, "")),
		stageNamed("driver", "sources", things.Exact("/srv/two", []byte("ours\n"), 0o644, "")),
		stageNamed("modules", "driver", things.Exact("/srv/three", []byte("ours\n"), 0o644, ""), converge.Want{
			Thing: mayFail{&bad},
			To:    to("done"),
		}))
	var back []string
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.RolledBack {
			back = append(back, ev.Line.Name)
		}
	}

	_, err := e.Apply(context.Background(), n)
	must.That(t, err != nil, "what cannot be made was made")
	want := []string{"/srv/three", "/srv/two", "/srv/one"}
	check.That(t, slices.Equal(back, want), "rolled back %v, want %v", back, want)
	must.OK(t, n.Remove("/srv/four"))
	compare(t, "failed at the end of a row of proofs", first, n.Tree(converge.Home))
}

// A run that was killed anywhere and goes on, and then fails in the stage that proves another,
// rolls back what the process before it had changed too: it is one run.
func TestResumedRunIsTurnedBackWhole(t *testing.T) {
	bad := false
	whole := node(t)
	first := whole.Tree(converge.Home)
	apply(t, whole, proving(t, &bad))
	turned := 0
	for cut := range whole.Touches() {
		bad = false
		n := node(t)
		n.CutAt(cut)
		if _, err := proving(t, &bad).Apply(context.Background(), n); err == nil {
			t.Fatalf("not cut at touch %d", cut)
		}
		n.Revive()
		bad = true
		_, err := proving(t, &bad).Apply(context.Background(), n)
		if _, made := n.Stat("/srv/done"); made == nil {
			continue // it was made before the process was killed
		}
		turned++
		must.That(t, err != nil, "cut at touch %d: what cannot be made was made", cut)
		compare(t, fmt.Sprintf("killed at touch %d, went on and failed", cut), first, n.Tree(converge.Home))
	}

	check.That(t, turned >= 10, "only %d runs were turned back", turned)
}

// What another process changed after the run was cut short is not gpuadm's, and stays.
func TestResumedRunLeavesOthersChanges(t *testing.T) {
	bad := true
	n := node(t)
	e := proving(t, &bad)
	stop := make(chan struct{})
	e.Stop = stop
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Made && ev.Line.Name == "/srv/two" {
			close(stop)
		}
	}

	_, err := e.Apply(context.Background(), n)
	must.That(t, errors.Is(err, converge.ErrStopped), "not stopped: %v", err)
	must.OK(t, n.WriteFile("/srv/one", []byte("theirs\n"), host.Attr{Mode: 0o600}))
	otherProcess := engineOf(t, named("driver", things.Exact("/srv/two", []byte("ours\n"), 0o644, "")), proving(t, &bad).Stages[1])
	_, err = otherProcess.Apply(context.Background(), n)
	must.That(t, err != nil, "what cannot be made was made")
	data, _ := n.ReadFile("/srv/one")
	check.That(t, string(data) == "theirs\n", "/srv/one says %q", data)
	_, err = n.Stat("/srv/two")
	check.That(t, err != nil, "/srv/two was not rolled back")
}

// What could not be resolved stays later when its turn comes, also in a run that has other things
// to do.
func TestUnresolvedIsNotMade(t *testing.T) {
	n := node(t)
	other := named("sources", things.Exact("/srv/other", []byte("x\n"), 0o644, ""))
	e := engineOf(t, other, stage(wantDrawing("x", "newest"), wantDrawing("y", "2")))
	e.ThingOf = drawings
	res := apply(t, n, e)
	check.That(t, len(res.Made) == 1 && len(res.Deferred) == 2, "made %v, later %v", res.Made, res.Deferred)
	_, err := n.Stat("/pkg/x")
	check.That(t, err != nil, "x was made in a version that no query had returned")
}

// fragile is replaced in two touches, and is away between them. It cannot be looked at while
// /srv/hidden is there.
type fragile struct{}

func (fragile) Ref() converge.Ref { return converge.Ref{Kind: "fragile", Name: "x"} }

func (fragile) Look(_ context.Context, v host.View) (converge.State, error) {
	if _, err := v.Stat("/srv/hidden"); err == nil {
		return "", host.Later{Until: "once it answers"}
	}
	data, err := v.ReadFile("/srv/x")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return converge.State(data), err
}

func (fragile) Make(_ context.Context, h host.Host, to converge.State) error {
	if err := h.Remove("/srv/x"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if to == "" {
		return nil
	}
	return h.WriteFile("/srv/x", []byte(to), host.Attr{Mode: 0o644})
}

// TestUndoOfAMakeCutShort: a make that a power cut ended may have left nothing. The run that
// continues may end before it can look at the thing again; its undo restores what was there.
func TestUndoOfAMakeCutShort(t *testing.T) {
	away := 0
	for touch := range 30 {
		n := node(t)
		put(t, n, "/srv/x", "before")
		e := engineOf(t, stage(converge.Want{
			Thing: fragile{},
			To:    to("after"),
		}, things.Exact("/srv/y", []byte("y\n"), 0o644, "")))
		e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
			if ref.Kind == "fragile" {
				return fragile{}, nil
			}
			return kinds(ref)
		}

		n.CutAt(n.Touches() + touch)
		_, _ = e.Apply(t.Context(), n)
		if !n.Off() {
			break
		}
		n.Boot(simhost.LoseNothing)
		if _, err := n.Stat("/srv/x"); err == nil {
			continue
		}
		away++
		put(t, n, "/srv/hidden", "")
		apply(t, n, e)
		must.OK(t, n.Remove("/srv/hidden"))
		undo(t, n, e, "")
		data, err := n.ReadFile("/srv/x")
		check.That(t, err == nil && string(data) == "before", "undone after a cut before touch %d: %q, %v", touch, data, err)
	}

	check.That(t, away != 0, "no cut has left nothing")
}

// A gpuadm that was killed while it wrote what it remembers until the next boot leaves a temporary
// file in /run. The next apply and the next undo remove it, whatever else they do.
func TestRunIsSwept(t *testing.T) {
	const left = "/run/.gpuadm-abcdefghijklmnop.tmp"
	n := node(t)
	e := engineOf(t, converge.Stage{Name: "s", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{things.Exact("/srv/one", []byte("ours\n"), 0o644, "")}, nil
	}})
	apply(t, n, e)

	for what, next := range map[string]func(){
		"apply": func() { apply(t, n, e) },
		"undo":  func() { undo(t, n, e, "all") },
	} {
		must.OK(t, n.WriteFile(left, nil, host.Attr{Mode: 0o600}))
		next()
		_, err := n.Stat(left)
		check.That(t, errors.Is(err, fs.ErrNotExist), "%s has left %s: %v", what, left, err)
	}
}
