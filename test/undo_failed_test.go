// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
)

// An undo that failed and the one that then ended well have undone the same: gpuadm owns nothing of either any more. What the
// spec no longer asks for does not come back, and no bytes are kept for it.
func TestUndoAfterFailedUndo(t *testing.T) {
	ctx := context.Background()
	a, b := things.Exact("/srv/a", []byte("a\n"), 0o644, ""), things.Exact("/srv/b", []byte("b\n"), 0o644, "")
	failed := 0
	for touch := range 12 {
		n := node(t)
		first := n.Tree(converge.Home)
		both := engineOf(t, stage(a, b))
		apply(t, n, both)
		n.Fail(n.Touches()+touch, syscall.EIO)
		if _, err := both.Undo(ctx, n, "", nil); err != nil {
			failed++
			undo(t, n, both, "")
		}
		compare(t, "undone", first, n.Tree(converge.Home))
		apply(t, n, engineOf(t, stage(b)))
		if _, err := n.Stat("/srv/a"); err == nil {
			t.Errorf("undo failed at touch %d: what was undone then and is not asked for is back", touch)
		}
		undo(t, n, both, "")
		if left := blobs(n); left > 0 {
			t.Errorf("undo failed at touch %d: %d unneeded blobs are kept", touch, left)
		}
	}
	if failed < 4 {
		t.Errorf("only %d undos failed", failed)
	}
}

// An apply that failed and was rolled back whole has left nothing. When the run before it is undone too, nothing is
// kept for it; and what it had meant to make is made and released later as on a fresh machine.
func TestFailedApplyLeavesNothing(t *testing.T) {
	ctx := context.Background()
	a := func(text string) converge.Want { return things.Exact("/srv/a", []byte(text), 0o644, "") }
	b, c := things.Exact("/srv/b", []byte("b\n"), 0o644, ""), things.Exact("/srv/c", []byte("c\n"), 0o644, "")
	back := 0
	for touch := range 24 {
		n := node(t)
		first := n.Tree(converge.Home)
		apply(t, n, engineOf(t, stage(a("1\n"), b)))
		n.Fail(n.Touches()+touch, syscall.EIO)
		e := engineOf(t, stage(a("2\n"), b, c))
		e.Tell = func(ev converge.Event) {
			if ev.What == converge.Undone {
				back++
			}
		}
		if _, err := e.Apply(ctx, n); err == nil {
			continue
		}
		undo(t, n, e, "all")
		compare(t, "undone", first, n.Tree(converge.Home))
		if left := blobs(n); left > 0 {
			t.Errorf("failed at touch %d: %d unneeded blobs are kept", touch, left)
		}
		apply(t, n, engineOf(t, stage(a("2\n"), b)))
		apply(t, n, engineOf(t, stage(b)))
		if _, err := n.Stat("/srv/a"); err == nil {
			t.Errorf("failed at touch %d: what is no longer asked for stays", touch)
		}
	}
	if back < 4 {
		t.Errorf("only %d changes were rolled back", back)
	}
}
