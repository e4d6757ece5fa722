// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// Sequences that once went wrong, and rules that nothing else here would miss.

// dying has a daemon that runs with the old file and dies with ours.
//
//go:embed testdata/dying.txtar
var dying string

func daemonStage(text string) converge.Stage {
	return stage(things.Exact("/etc/d.conf", []byte(text), 0o644, ""), things.Restart("d.service", []string{"/etc/d.conf"}, nil, ""))
}

// Killed after gpuadm's file has killed the daemon, and before the roll-back: the next apply does
// not call it converged.
func TestKilledDaemonIsNotConverged(t *testing.T) {
	e := func() *converge.Engine { return engineOf(t, daemonStage("bad\n")) }
	whole := machine{"dying", []byte(dying)}.boot(t)
	_, err := e().Apply(context.Background(), whole)
	must.That(t, err != nil, "the daemon did not die")
	for cut := range whole.Touches() {
		n := machine{"dying", []byte(dying)}.boot(t)
		n.Advance(1)
		n.CutAt(cut)
		e().Apply(context.Background(), n)
		n.Boot(simhost.LoseNothing)
		_, err := e().Apply(context.Background(), n)
		if b, _ := n.ReadFile("/etc/d.conf"); err == nil && string(b) == "bad\n" && !strings.Contains(n.Units(), "d.service enabled active") {
			t.Errorf("cut at touch %d: called converged, with a dead daemon: %s", cut, n.Units())
		}
	}
}

// An undo to bytes that kill the current daemon is itself rolled back.
func TestUndoThatKillsIsTurnedBack(t *testing.T) {
	node := machine{"dying", []byte(dying)}.boot(t)
	apply(t, node, engineOf(t, daemonStage("ours\n")))
	// The daemon was replaced since, by one that does not take what it ran with at first.
	must.OK(t, node.Refuse("d.service", "good"))
	before := tree(node)
	_, err := engineOf(t).Undo(context.Background(), node, "", nil)
	must.That(t, err != nil, "an undo that killed the daemon said nothing")
	compare(t, "turned back", before, tree(node))
	_, err = engineOf(t).Undo(context.Background(), node, "", nil)
	check.That(t, err != nil, "the second undo says that there is nothing to do")
}

// A section that only verifies releases what it made before.
func TestOtherOwnerIsNeverTouched(t *testing.T) {
	n := recordedAs(t, "ubuntu24-h100").boot(t)
	apply(t, n, engine(t, sections["default"]))
	applied, touches := tree(n), n.Touches()
	e := engine(t, "[runtime]\nset_as_default = true\nowner = \"other\"\n")
	res := apply(t, n, e)
	check.That(t, res.Run == "" && n.Touches() == touches && tree(n) == applied, "touched: %s", names(res.Made))
}

// A disk that fills for good in the middle: what was changed is rolled back all the same.
func TestDiskFullForGoodIsTurnedBack(t *testing.T) {
	whole := node(t)
	e := func() *converge.Engine {
		return engineOf(t, stage(things.Exact("/etc/d.conf", []byte("new"), 0o644, ""), things.Exact("/etc/z", []byte("z"), 0o644, "")))
	}
	apply(t, whole, e())
	for at := range whole.Touches() {
		n := node(t)
		for _, touch := range []int{at, at + 1, at + 2} { // the write, its clean-up and the next journal line
			n.Fail(touch, syscall.ENOSPC)
		}
		_, err := e().Apply(context.Background(), n)
		if err == nil || strings.HasPrefix(err.Error(), "cannot close the run") {
			continue
		}
		b, _ := n.ReadFile("/etc/d.conf")
		if _, z := n.Lstat("/etc/z"); (string(b) != "old\n" || z == nil) && !strings.Contains(strings.Join(because(err), " "), "could not be rolled back") {
			t.Errorf("touch %d: changed and not told: %v", at, err)
		}
	}
}

func because(err error) []string {
	var t *trouble.Error
	if errors.As(err, &t) {
		return t.Because
	}
	return nil
}

// What could not be rolled back is not forgotten: undo still knows of it.
func TestFailedTurnBackIsRemembered(t *testing.T) {
	n := node(t)
	stub := stubborn{"/srv/stub"}
	e := engineOf(t, stage(converge.Want{Thing: stub, To: to("on")}, wantPkg("fails", "1")))
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "stub" {
			return stub, nil
		}
		return kinds(ref)
	}

	e.Stages[0].Wants = func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		return []converge.Want{{
			Thing: stub,
			To:    to("on"),
		}, labstage.Step{
			Label: "never",
			Ask:   []string{"is-done"},
			Do:    []string{"do-it"},
			Undo:  []string{"do-it"},
		}.Want("")}, nil
	}

	if _, err := e.Apply(context.Background(), n); err == nil || !strings.Contains(strings.Join(because(err), " "), "could not be rolled back") {
		t.Fatalf("applied: %v", err)
	}
	p, err := e.PlanUndo(context.Background(), n, "all", nil)
	check.That(t, err == nil && len(p.Changes) == 1, "undo would undo %v, %v", p.Changes, err)
}

// stubborn can be made, and not be undone.
type stubborn struct{ file string }

func (s stubborn) Ref() converge.Ref { return converge.Ref{Kind: "stub", Name: s.file} }

func (s stubborn) Look(_ context.Context, v host.View) (converge.State, error) {
	if _, err := v.Lstat(s.file); err != nil {
		return "", nil
	}
	return "on", nil
}

func (s stubborn) Make(_ context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return errors.New("device busy")
	}
	return h.WriteFile(s.file, nil, host.Attr{Mode: 0o644})
}

// Consent is asked for an undo too.
func TestUndoNeedsConsent(t *testing.T) {
	n := node(t)
	w := things.Exact("/etc/a", []byte("a"), 0o600, "")
	w.Breaks = []string{"reset-gpu"}
	e := engineOf(t, stage(w))
	apply(t, n, e)
	e.Clients = func(context.Context, host.View) ([]string, error) {
		return []string{"process 77"}, nil
	}
	touches := n.Touches()
	_, err := e.Undo(context.Background(), n, "", nil)
	check.That(t, err != nil && n.Touches() == touches, "undone without consent: %v", err)
	e.Allow = []string{"all"}
	undo(t, n, e, "")
}

// An undo that was stopped goes on as the same run.
func TestUndoStopsAndGoesOn(t *testing.T) {
	n := node(t)
	first := n.Tree(converge.Home)
	e := engineOf(t, stage(things.Exact("/etc/a", nil, 0o644, ""), things.Exact("/etc/b", nil, 0o644, "")))
	apply(t, n, e)
	stop := make(chan struct{})
	e.Stop = stop
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Undone {
			close(stop)
		}
	}

	res, err := e.Undo(context.Background(), n, "", nil)
	must.That(t, errors.Is(err, converge.ErrStopped), "not stopped: %v", err)
	e.Stop, e.Tell = nil, nil
	s, err := e.Status(context.Background(), n)
	check.That(t, err == nil && s.Undoing && s.Unfinished == res.Run, "status: %+v %v", s.Unfinished, err)
	again := undo(t, n, e, "")
	check.That(t, again.Run == res.Run, "went on as %s, not %s", again.Run, res.Run)
	compare(t, "undone", first, n.Tree(converge.Home))
}

// A run that is asked to stop while it plans says so, touches nothing and plans no further stage,
// also where nothing is to be made.
func TestStopsWhilePlanning(t *testing.T) {
	n, stop, planned := node(t), make(chan struct{}), 0
	wants := func(spec.Spec, facts.Facts) ([]converge.Want, error) {
		if planned++; planned == 1 {
			close(stop)
		}
		return nil, nil
	}

	e := engineOf(t, converge.Stage{
		Name:  "one",
		Wants: wants,
	}, converge.Stage{Name: "two", Wants: wants})
	e.Stop = stop
	touches := n.Touches()
	_, err := e.Apply(t.Context(), n)
	check.That(t, errors.Is(err, converge.ErrStopped) && planned == 1 && n.Touches() == touches, "%v, %d stages", err, planned)
}

// A thing shrinks with the section that asked for it, not with its stage.
func TestShrinkingGoesBySection(t *testing.T) {
	n := node(t)
	w := things.Exact("/etc/a", []byte("a"), 0o600, "")
	w.Section = "toolkit"
	apply(t, n, engineOf(t, stage(w)))
	e := engineOf(t, stage())
	if p := plan(t, n, e); p.Now() != 0 { // [driver] is in the spec, [toolkit] never was: released
		t.Errorf("planned: %s", namesNow(p.Changes))
	}
	e.Spec = specs.Of(t, "[toolkit]\n")
	p := plan(t, n, e)
	check.That(t, p.Now() == 1, "planned: %s", namesNow(p.Changes))
}

// A run that a power cut left open after its last change is closed by an apply with nothing to do.
func TestOpenRunIsClosed(t *testing.T) {
	n := node(t)
	e := func() *converge.Engine {
		return engineOf(t, stage(things.Exact("/etc/a", nil, 0o644, "")))
	}
	whole := node(t)
	apply(t, whole, e())
	n.CutAt(whole.Touches() - 2)
	e().Apply(context.Background(), n)
	n.Boot(simhost.LoseNothing)
	apply(t, n, e())
	s, err := e().Status(context.Background(), n)
	check.That(t, err == nil && s.Unfinished == "", "still open: %q %v", s.Unfinished, err)
}

// A judge that could not be asked is asked again by the next try.
func TestJudgeIsAskedAgain(t *testing.T) {
	n, asked := node(t), 0
	f := things.NewFile("/etc/d.conf", nil).Validated(func(context.Context, host.View, []byte, []byte) error {
		if asked++; asked == 1 {
			return errors.New("no answer")
		}
		return nil
	})
	e := engineOf(t, stage(things.Edited(f, func([]byte) ([]byte, error) {
		return []byte("new"), nil
	}, "")))
	_, err := e.Apply(context.Background(), n)
	must.That(t, err != nil, "not judged")
	apply(t, n, e)
	check.That(t, asked == 2, "asked %d times", asked)
}

// What a run says when it ends.

func troubleOf(t *testing.T, err error) *trouble.Error {
	t.Helper()
	tr := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &tr), "no trouble: %v", err)
	return tr
}

// An apply that failed says which earlier stages' changes remain, and how to undo them: all that it
// names is then undone.
func TestFailedApplySaysWhatRemains(t *testing.T) {
	first, second, third := named("driver", things.Exact("/srv/a", []byte("a\n"), 0o644, "")), named("runtime", things.Exact("/srv/b", []byte("b\n"), 0o644, "")), named("mig", things.Exact("/srv/c", []byte("c\n"), 0o644, ""))
	const says = "the changes that this run made in these stages remain: "
	seen := map[string]bool{}
	for touch := range 60 {
		n := node(t)
		before := tree(n)
		e := engineOf(t, first, second, third)
		n.Fail(n.Touches()+touch, syscall.EIO)
		res, err := e.Apply(context.Background(), n)
		if err == nil || strings.HasPrefix(err.Error(), "cannot close the run") {
			continue
		}
		tr := &trouble.Error{}
		errors.As(err, &tr) // the first touches of a run fail in plain words
		_, a := n.Stat("/srv/a")
		_, b := n.Stat("/srv/b")
		want := ""
		switch {
		case a == nil && b == nil:
			want = says + "driver, runtime"
		case a == nil:
			want = says + "driver"
		}

		said := strings.Join(tr.Because, "\n")
		if strings.Contains(said, says) != (want != "") || want != "" && !slices.Contains(tr.Because, want) {
			t.Errorf("failed at touch %d: want %q, said %q", touch, want, tr.Because)
		}
		check.That(t, want == "" || slices.Contains(tr.Try, "or undo them too: "+trouble.Command("undo --to "+res.Run)), "failed at touch %d: try %q", touch, tr.Try)
		seen[want] = true
		undo(t, n, e, "")
		compare(t, "undone", before, tree(n))
	}

	check.That(t, len(seen) == 3, "seen %v", seen)
}

// An undo that failed, or had nothing to undo, holds nothing: the next unattended apply works.
func TestUndoThatFailedHoldsNothing(t *testing.T) {
	failed := 0
	for touch := range 30 {
		n := node(t)
		e := edition(t, 1)
		apply(t, n, e)
		before := tree(n)
		n.Fail(n.Touches()+touch, syscall.EIO)
		if _, err := e.Undo(context.Background(), n, "", nil); err == nil {
			continue
		}
		failed++
		if tree(n) == before {
			held := converge.ReadJournal(n).Held()
			check.That(t, held == "", "failed at touch %d, and the undo of %s holds", touch, held)
		}
		e.Unattended = true
		if res, err := e.Apply(context.Background(), n); err != nil || res.Held != "" && tree(n) == before {
			t.Errorf("failed at touch %d: held by %q, %v", touch, res.Held, err)
		}
	}

	check.That(t, failed >= 5, "%d undos failed", failed)
	bad := true
	n := node(t)
	e := proving(t, &bad)
	_, err := e.Apply(context.Background(), n)
	must.That(t, err != nil, "it was applied")
	if res := undo(t, n, e, ""); res.Run != "" || converge.ReadJournal(n).Held() != "" {
		t.Errorf("of a run that changed nothing: run %q, held by %q", res.Run, converge.ReadJournal(n).Held())
	}
}

// Two refusals that are the same are said once, by apply and by undo, with their reasons.
func TestSameRefusalIsSaidOnce(t *testing.T) {
	refusal := func(name string) converge.Want {
		return things.Check(name, func(context.Context, host.View) (string, error) {
			return "cannot go on: the disk is broken\ndmesg says so", nil
		}, "", "replace it")
	}

	n := node(t)
	e := engineOf(t, named("driver", refusal("one")), named("runtime", refusal("two"), refusal("three")))
	_, err := e.Apply(context.Background(), n)
	once(t, troubleOf(t, err))

	n = node(t)
	e = engineOf(t, named("driver", things.Exact("/srv/a", []byte("a\n"), 0o644, ""), things.Exact("/srv/b", []byte("b\n"), 0o644, "")))
	apply(t, n, e)
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		t, err := kinds(ref)
		return unanswered{t}, err
	}

	_, err = e.Undo(context.Background(), n, "", nil)
	once(t, troubleOf(t, err))
}

// unanswered cannot say what making it would interrupt.
type unanswered struct{ converge.Thing }

func (unanswered) Breaks(context.Context, host.View, converge.State, converge.State) ([]string, map[string][]string, error) {
	return nil, nil, &trouble.Error{
		What:    "cannot find out who uses the GPUs",
		Because: []string{"the driver does not answer"},
		Try:     []string{"reboot"},
	}
}

func once(t *testing.T, tr *trouble.Error) {
	t.Helper()
	said := map[string]bool{}
	for _, line := range slices.Concat([]string{tr.What}, tr.Because, tr.Try) {
		if line = strings.TrimPrefix(line, "also: "); said[line] {
			t.Errorf("%q is said twice: %q, %q, %q", line, tr.What, tr.Because, tr.Try)
		}
		said[line] = true
	}
}
