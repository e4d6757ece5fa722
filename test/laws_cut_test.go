// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
)

// Law 8: a power cut before any touch of an apply or of an undo, then any command. Each is tried at a sample of the touches,
// and at all of them in a nightly run.

// A straight run is an apply and an undo of all that nothing interrupts.
type straight struct {
	machine        machine
	e              func() *converge.Engine
	first, applied string // the trees before and between
	made, undone   int    // the touches that the apply, and both, take
}

func run(t *testing.T, m machine, e func() *converge.Engine) straight {
	t.Helper()
	n := m.boot(t)
	n.Reboot() // what is enabled runs, as after each power cut
	s := straight{machine: m, e: e, first: tree(n)}
	apply(t, n, e())
	s.applied, s.made = tree(n), n.Touches()
	clean(t, "applied", n)
	undo(t, n, e(), "all")
	s.undone = n.Touches()
	settled(t, "applied and undone", s.first, n)
	return s
}

// cut cuts the power of a new machine before a touch of its apply, or of the undo after it, and boots it again.
func (s straight) cut(t *testing.T, touch int, loss simhost.Loss) *simhost.Node {
	t.Helper()
	n := s.machine.boot(t)
	n.CutAt(touch)
	_, err := s.e().Apply(context.Background(), n)
	ended := false // then only what no undo needs any more is cleared away
	if err == nil {
		back := s.e()
		back.Tell = func(ev converge.Event) { ended = ended || ev.What == converge.Ended }
		_, err = back.Undo(context.Background(), n, "all", nil)
	}
	if err == nil && !ended || !n.Off() {
		t.Fatalf("touch %d: the power was not cut: %v", touch, err)
	}
	n.Boot(loss)
	return n
}

// cuts runs a law for every case, at touches of the apply or of the undo after it.
func cuts(t *testing.T, undoing bool, law func(t *testing.T, s straight, n *simhost.Node, what string)) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		s := run(t, m, e)
		from, many, of := 0, s.made, "apply"
		if undoing {
			from, many, of = s.made, s.undone-s.made, "undo"
		}
		for _, at := range sample(t, many, 8) {
			for _, loss := range losses(at) {
				law(t, s, s.cut(t, from+at, loss), fmt.Sprintf("%s cut at touch %d of %d, %v", of, at, many, loss))
			}
		}
	})
}

// to undo is what undo may be asked for.
var undoes = []string{"all", ""}

func TestApplyCutThenApply(t *testing.T) {
	cuts(t, false, func(t *testing.T, s straight, n *simhost.Node, what string) {
		apply(t, n, s.e())
		settled(t, what+", applied again", s.applied, n)
		undo(t, n, s.e(), "all")
		settled(t, what+", applied again and undone", s.first, n)
	})
}

func TestApplyCutThenBoot(t *testing.T) {
	cuts(t, false, func(t *testing.T, s straight, n *simhost.Node, what string) {
		boot(t, n, s.e(), what)
		settled(t, what+", then booted", s.applied, n)
		undo(t, n, s.e(), "")
		settled(t, what+", then booted and undone", s.first, n)
	})
}

func TestApplyCutThenUndo(t *testing.T) {
	for _, to := range undoes {
		t.Run("to "+to, func(t *testing.T) {
			cuts(t, false, func(t *testing.T, s straight, n *simhost.Node, what string) {
				what += fmt.Sprintf(", undone to %q at once", to)
				undoAfter(t, n, s.e(), to, what)
				settled(t, what, s.first, n)
			})
		})
	}
}

func TestUndoCutThenUndo(t *testing.T) {
	for _, to := range undoes {
		t.Run("to "+to, func(t *testing.T) {
			cuts(t, true, func(t *testing.T, s straight, n *simhost.Node, what string) {
				what += fmt.Sprintf(", undone to %q", to)
				undoAfter(t, n, s.e(), to, what)
				settled(t, what, s.first, n)
			})
		})
	}
}

// A machine that boots on a cut undo finishes it, and is held: kubelet does not start on half of either.
func TestUndoCutThenBoot(t *testing.T) {
	cuts(t, true, func(t *testing.T, s straight, n *simhost.Node, what string) {
		began := undoing(t, s, n, what)
		res := boot(t, n, s.e(), what)
		if !began {
			settled(t, what+", before it began, then booted", s.applied, n)
			return
		}
		settled(t, what+", then booted", s.first, n)
		if res.Held == "" {
			t.Fatalf("%s, then booted: the undo does not hold: %+v", what, res)
		}
		status, err := s.e().Status(context.Background(), n.View())
		if err != nil || status.Undoing || status.Held == "" {
			t.Fatalf("%s, then booted: undoing %t, held %q, %v", what, status.Undoing, status.Held, err)
		}
	})
}

func TestUndoCutThenApply(t *testing.T) {
	cuts(t, true, func(t *testing.T, s straight, n *simhost.Node, what string) {
		apply(t, n, s.e())
		settled(t, what+", applied by hand", s.applied, n)
		undo(t, n, s.e(), "all")
		settled(t, what+", applied by hand and undone", s.first, n)
	})
}

// undoing says whether the undo that was cut is known. One that is not has touched nothing.
func undoing(t *testing.T, s straight, n *simhost.Node, what string) bool {
	t.Helper()
	status, err := s.e().Status(context.Background(), n.View())
	if err != nil {
		t.Fatalf("%s: no status: %v", what, err)
	}
	known := status.Undoing || status.Held != ""
	if !known {
		compare(t, what+", and nothing knows that there was an undo", s.applied, tree(n))
	}
	return known
}

// boot is the apply of a boot.
func boot(t testing.TB, n *simhost.Node, e *converge.Engine, what string) converge.Result {
	t.Helper()
	e.Unattended = true
	res, err := e.Apply(context.Background(), n)
	if err != nil {
		t.Fatalf("%s, then booted: %v", what, err)
	}
	return res
}

func undoAfter(t testing.TB, n *simhost.Node, e *converge.Engine, to, what string) converge.Result {
	t.Helper()
	res, err := e.Undo(context.Background(), n, to, nil)
	if err != nil {
		t.Fatalf("%s: cannot undo: %v", what, err)
	}
	return res
}
