// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// far is a place that does not always answer.
type far struct {
	mu      sync.Mutex
	answers int // how many more answers it gives; less than 0: all
	err     error
}

func (f *far) ask() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers == 0 {
		return f.err
	}
	f.answers--
	return nil
}

// afar is a thing of such a place: a file that is only seen where it answers.
type afar struct {
	*far
	name string
}

func (a afar) Ref() converge.Ref { return converge.Ref{Kind: "afar", Name: a.name} }

func (a afar) Look(ctx context.Context, v host.View) (converge.State, error) {
	if err := a.ask(); err != nil {
		return "", err
	}
	return pkgThing{a.name}.Look(ctx, v)
}

func (a afar) Make(ctx context.Context, h host.Host, to converge.State) error {
	if err := a.ask(); err != nil {
		return err
	}
	return pkgThing{a.name}.MakeAll(ctx, h, []converge.Change{{
		Ref:   converge.Ref{Name: a.name},
		After: to,
	}})
}

// farEngine wants two files here, and two things there.
func farEngine(t *testing.T, f *far) *converge.Engine {
	e := engineOf(t, stage(
		things.Exact("/etc/a", []byte("a\n"), 0o644, ""),
		converge.Want{Thing: afar{f, "one"}, To: to("1")},
		converge.Want{Thing: afar{f, "two"}, To: to("2")},
		things.Exact("/etc/b", []byte("b\n"), 0o644, ""),
	))
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "afar" {
			return afar{f, ref.Name}, nil
		}
		return kinds(ref)
	}

	return e
}

func farNode(t *testing.T, f *far) (n *simhost.Node, before string) {
	n = node(t)
	before = n.Tree(converge.Home, "/srv")
	apply(t, n, farEngine(t, f))
	return n, before
}

func silent() error {
	return trouble.Wait{For: "api.example does not answer: connection refused"}
}

// Undo of a thing that a silent server keeps touches nothing, names the server, and says that
// waiting helps; once there is an answer the same undo undoes all.
func TestUndoWaitsForWhoDoesNotAnswer(t *testing.T) {
	f := &far{answers: -1, err: silent()}
	n, before := farNode(t, f)
	f.answers = 0
	all := n.Tree()
	for _, to := range []string{"", "all"} {
		_, err := farEngine(t, f).Undo(t.Context(), n, to, nil)
		tr := (*trouble.Error)(nil)
		must.That(t, trouble.Passes(err) && errors.As(err, &tr), "waiting would help, and undo says %v", err)
		check.Says(t, err.Error(), "cannot read the state of", "afar one", "afar two", "api.example does not answer")
		check.That(t, !strings.Contains(err.Error(), "changed") && slices.Contains(tr.Undone, trouble.NothingTouched), "%+v", tr)
		try := strings.Join(tr.Try, "\n")
		check.That(t, strings.Contains(try, "wait") && (strings.Contains(try, "--leave one --leave two") || strings.Contains(try, "--leave two --leave one")),
			"what to do: %q", try)
	}

	compare(t, "after an undo that could not ask", all, n.Tree())
	_, err := farEngine(t, f).PlanUndo(t.Context(), n, "", nil)
	check.That(t, trouble.Passes(err), "the plan says %v", err)
	f.answers = -1
	undo(t, n, farEngine(t, f), "")
	compare(t, "undone", before, n.Tree(converge.Home, "/srv"))
}

// What does not answer can be left, and the rest goes.
func TestUndoLeavesWhoDoesNotAnswer(t *testing.T) {
	f := &far{answers: -1, err: silent()}
	n, _ := farNode(t, f)
	f.answers = 0
	res, err := farEngine(t, f).Undo(t.Context(), n, "", []string{"one", "afar two"})
	must.That(t, err == nil && len(res.Left) == 2 && strings.Contains(res.Left[0].Cannot, "does not answer"), "%v, left %+v", err, res.Left)
	for _, name := range []string{"/etc/a", "/etc/b"} {
		_, err := n.Stat(name)
		check.That(t, err != nil, "%s is still there", name)
	}
}

// Where another process has changed what gpuadm made, waiting alone does not help: that comes
// first, with the servers that could not be asked.
func TestUndoTellsOthersChangesBesideSilence(t *testing.T) {
	f := &far{answers: -1, err: silent()}
	n, _ := farNode(t, f)
	f.answers = 0
	put(t, n, "/etc/b", "theirs\n")
	_, err := farEngine(t, f).Undo(t.Context(), n, "", nil)
	must.That(t, err != nil && !trouble.Passes(err) && strings.Contains(err.Error(), "/etc/b"), "got %v", err)
	why := strings.Join(because(err), "\n")
	check.That(t, strings.Contains(why, "afar one") && strings.Contains(why, "does not answer"), "who does not answer is not told: %q", why)
}

// Where the read fails for good, undo reports neither a change nor a wait.
func TestUndoThatCannotLook(t *testing.T) {
	f := &far{
		answers: -1,
		err: &trouble.Error{
			What:    "no certificate",
			Because: []string{"it has run out"},
			Try:     []string{"join again"},
		},
	}
	n, _ := farNode(t, f)
	f.answers = 0
	_, err := farEngine(t, f).Undo(t.Context(), n, "", nil)
	tr := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &tr) && !trouble.Passes(err) && strings.Contains(err.Error(), "no certificate"), "got %v", err)
	check.That(t, !strings.Contains(strings.Join(tr.Try, "\n"), "as we left it") && slices.Contains(tr.Try, "join again") && slices.Contains(tr.Because, "it has run out"),
		"%+v", tr)
}

// A server that falls silent at any moment of an undo leaves nothing half done for good: the
// machine is as it was found, or wholly undone, and the next undo, once there is an answer, undoes
// the rest.
func TestUndoGoesOnAfterSilence(t *testing.T) {
	waited := 0
	for after := range 20 {
		f := &far{answers: -1, err: silent()}
		n, before := farNode(t, f)
		f.answers = after
		_, err := farEngine(t, f).Undo(t.Context(), n, "", nil)
		if f.answers > 0 {
			break
		}
		check.That(t, err == nil || trouble.Passes(err), "silent after %d answers: %v", after, err)
		if err != nil {
			waited++
			for _, b := range because(err) {
				check.That(t, !strings.Contains(b, "could not be rolled back"), "silent after %d answers: %s", after, b)
			}
		}

		f.answers = -1
		undo(t, n, farEngine(t, f), "")
		compare(t, "undone", before, n.Tree(converge.Home, "/srv"))
	}

	check.That(t, waited >= 4, "only %d undos had to wait", waited)
}

// Status does not report a change of what it could not read.
func TestStatusOfWhatDoesNotAnswer(t *testing.T) {
	f := &far{answers: -1, err: silent()}
	n, _ := farNode(t, f)
	f.answers = 0
	put(t, n, "/etc/b", "theirs\n")
	s := must.Get(farEngine(t, f).Status(t.Context(), n))(t)
	for _, m := range s.Made {
		check.That(t, m.Changed == (m.Name == "/etc/b") && (m.Unseen != "") == (m.Kind == "afar"), "%+v", m)
	}
}

// foreignThing is a thing that another process brings: /srv/theirs. gpuadm can only wait for it, in
// its look or in its make.
type foreignThing struct{ looks bool }

func (foreignThing) Ref() converge.Ref {
	return converge.Ref{Kind: "check", Name: "theirs"}
}

func (o foreignThing) Look(_ context.Context, v host.View) (converge.State, error) {
	if _, err := v.Stat("/srv/theirs"); err == nil {
		return "there", nil
	} else if o.looks {
		return "", trouble.Wait{For: "theirs is missing", Try: []string{"ask them"}}
	}
	return "", nil
}

func (foreignThing) Make(context.Context, host.Host, converge.State) error {
	return trouble.Wait{For: "theirs is missing"}
}

// TestWaiting: a thing that only others can bring stops nothing else and rolls nothing back. The
// same run continues once it is there.
func TestWaiting(t *testing.T) {
	for _, o := range []foreignThing{{looks: true}, {looks: false}} {
		n := node(t)
		e := engineOf(t, stage(
			things.Exact("/etc/a", []byte("a"), 0o600, ""),
			converge.Want{Thing: o, To: to("there")},
			things.Exact("/etc/b", []byte("b"), 0o600, ""),
		))
		res, err := e.Apply(context.Background(), n)
		must.That(t, trouble.Passes(err) && strings.Contains(err.Error(), "theirs is missing"), "%+v: %v", o, err)
		tr := (*trouble.Error)(nil)
		check.That(t, !o.looks || (errors.As(err, &tr) && len(tr.Try) == 1 && tr.Try[0] == "ask them"), "no fix: %+v", err)
		if _, err := n.Stat("/etc/a"); err != nil {
			t.Errorf("%+v: what was made before is gone: %v", o, err)
		}
		if _, err := n.Stat("/etc/b"); (err == nil) != o.looks {
			t.Errorf("%+v: what comes after it: %v", o, err)
		}
		plan, err := e.Plan(context.Background(), n)
		check.That(t, err == nil && len(plan.Cannot()) == 0, "%+v: the plan says it cannot be: %v %+v", o, err, plan.Cannot())
		must.OK(t, n.WriteFile("/srv/theirs", nil, host.Attr{Mode: 0o644}))
		again := apply(t, n, e)
		check.That(t, o.looks || again.Run == res.Run, "a new run %s does not go on with %s", again.Run, res.Run)
		_, err = n.Stat("/etc/b")
		check.That(t, err == nil, "%+v: %v", o, err)
	}
}

// TestWaitingToKnow: a stage that cannot say yet what it wants, since a cloud does not answer, is
// waited for too.
func TestWaitingToKnow(t *testing.T) {
	for _, waits := range []bool{true, false} {
		n := node(t)
		st := stage()
		st.Wants = func(spec.Spec, facts.Facts) ([]converge.Want, error) {
			cause := error(trouble.Wait{For: "an answer"})
			if !waits {
				cause = errors.New("no")
			}
			return nil, &trouble.Error{
				What: "cannot ask",
				Try:  []string{"ask them"},
				Err:  cause,
			}
		}

		_, err := engineOf(t, st).Apply(context.Background(), n)
		tr := (*trouble.Error)(nil)
		check.That(t, trouble.Passes(err) == waits && errors.As(err, &tr) && len(tr.Try) == 1 && tr.What == "cannot ask", "waits %v: %+v", waits, err)
	}
}
