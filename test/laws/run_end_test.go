// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// What a run says when it ends.

func troubleOf(t *testing.T, err error) *trouble.Error {
	t.Helper()
	tr := (*trouble.Error)(nil)
	if !errors.As(err, &tr) {
		t.Fatalf("no trouble: %v", err)
	}
	return tr
}

// An apply that failed says which earlier stages' changes remain, and how to undo them: all that it names is then undone.
func TestFailedApplySaysWhatRemains(t *testing.T) {
	first, second, third := named("driver", things.Exact("/srv/a", []byte("a\n"), 0o644, "")), named("runtime", things.Exact("/srv/b", []byte("b\n"), 0o644, "")), named("mig", things.Exact("/srv/c", []byte("c\n"), 0o644, ""))
	const says = "the changes that this run made in these stages remain: "
	seen := map[string]bool{}
	for touch := range 60 {
		n := node(t)
		before := tree(n)
		e := engineOf(t, first, second, third)
		n.Fail(n.Touches()+touch, syscall.EIO)
		_, err := e.Apply(context.Background(), n)
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
		if want != "" && !slices.Contains(tr.Try, "or undo them too: "+trouble.Command("undo")) {
			t.Errorf("failed at touch %d: try %q", touch, tr.Try)
		}
		seen[want] = true
		undo(t, n, e, "")
		compare(t, "undone", before, tree(n))
	}
	if len(seen) != 3 {
		t.Errorf("seen %v", seen)
	}
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
			if held := converge.ReadJournal(n).Held(); held != "" {
				t.Errorf("failed at touch %d, and the undo of %s holds", touch, held)
			}
		}
		e.Unattended = true
		if res, err := e.Apply(context.Background(), n); err != nil || res.Held != "" && tree(n) == before {
			t.Errorf("failed at touch %d: held by %q, %v", touch, res.Held, err)
		}
	}
	if failed < 5 {
		t.Errorf("%d undos failed", failed)
	}
	bad := true
	n := node(t)
	e := proving(t, &bad)
	if _, err := e.Apply(context.Background(), n); err == nil {
		t.Fatal("it was applied")
	}
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
	return nil, nil, &trouble.Error{What: "cannot find out who uses the GPUs", Because: []string{"the driver does not answer"}, Try: []string{"reboot"}}
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
