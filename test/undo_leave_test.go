// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
)

// If a name to leave is given, the advice about another obstacle has a command line that leaves both.
func TestUndoLeavesBoth(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(things.Exact("/etc/a", []byte("a"), 0o644, ""), things.Exact("/etc/b", []byte("b"), 0o644, "")))
	apply(t, n, e)
	put(t, n, "/etc/a", "theirs")
	put(t, n, "/etc/b", "theirs")
	_, err := e.Undo(t.Context(), n, "", []string{"/etc/a"})
	tr := (*trouble.Error)(nil)
	if !errors.As(err, &tr) || !strings.Contains(strings.Join(tr.Try, "\n"), "gpuadm undo --leave /etc/a --leave /etc/b") {
		t.Fatalf("%#v", err)
	}
	must.Get(e.Undo(t.Context(), n, "", []string{"/etc/a", "/etc/b"}))(t)
}

// The same command line goes on with an undo that was cut, and may be given again when all is undone.
func TestUndoLeavesAgain(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(things.Exact("/etc/a", []byte("a"), 0o644, ""), things.Exact("/etc/b", []byte("b"), 0o644, "")))
	apply(t, n, e)
	put(t, n, "/etc/a", "theirs")
	leave := []string{"/etc/a"}
	cut, stop := 0, make(chan struct{})
	e.Stop = stop
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Left {
			close(stop)
		}
	}
	if _, err := e.Undo(t.Context(), n, "", leave); errors.Is(err, converge.ErrStopped) {
		cut++
	}
	if cut != 1 {
		t.Fatal("not cut")
	}
	e.Stop, e.Tell = nil, nil
	for range 2 {
		must.Get(e.Undo(t.Context(), n, "", leave))(t)
	}
}
