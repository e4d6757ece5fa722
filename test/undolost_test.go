// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Bytes that were kept for the way back and are gone, or have changed, are missed before anything is touched; the rest can be undone.
func TestUndoWithoutItsBytes(t *testing.T) {
	for name, spoil := range map[string]func(h host.Host, blob string) error{
		"gone":    func(h host.Host, blob string) error { return h.Remove(blob) },
		"changed": func(h host.Host, blob string) error { return h.WriteFile(blob, []byte("x"), host.Attr{Mode: 0o600}) },
	} {
		n := node(t)
		put(t, n, "/srv/a", "theirs\n")
		e := engineOf(t, stage(things.Exact("/srv/a", []byte("ours\n"), 0o644, ""), things.Exact("/srv/b", []byte("b\n"), 0o644, "")))
		apply(t, n, e)
		j, err := converge.ReadJournal(n)
		if err != nil {
			t.Fatal(err)
		}
		blob := converge.Home + "/blobs/" + strings.Fields(string(j.Runs()[0].Makes[0].Before))[2]
		if err := spoil(n, blob); err != nil {
			t.Fatal(err)
		}
		all := n.Tree()
		for _, plans := range []bool{true, false} {
			if plans {
				_, err = e.PlanUndo(t.Context(), n, "", nil)
			} else {
				_, err = e.Undo(t.Context(), n, "", nil)
			}
			tr := (*converge.Trouble)(nil)
			if !errors.As(err, &tr) || !strings.Contains(tr.What, "cannot put back file /srv/a: ") || !strings.Contains(tr.What, path.Base(blob)) {
				t.Fatalf("%s: %v", name, err)
			}
			if try := strings.Join(tr.Try, "\n"); !strings.Contains(try, "gpuadm undo --leave /srv/a") || strings.Contains(try, "as we left it") {
				t.Errorf("%s: %q", name, try)
			}
		}
		compare(t, name, all, n.Tree())
		if _, err := e.Undo(t.Context(), n, "", []string{"/srv/a"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := n.Stat("/srv/b"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the rest stays: %v", name, err)
		}
	}
}

// An undo that fails says at which stage.
func TestUndoSaysItsStage(t *testing.T) {
	failed := 0
	for touch := range 10 {
		n := node(t)
		e := edition(t, 1)
		apply(t, n, e)
		n.Fail(n.Touches()+touch, syscall.EROFS)
		e.Tell = func(ev converge.Event) {
			if ev.What == converge.Failed {
				failed++
				if ev.Stage != "driver" {
					t.Errorf("failed at %q", ev.Stage)
				}
			}
		}
		e.Undo(t.Context(), n, "", nil)
	}
	if failed < 3 {
		t.Errorf("%d undos failed", failed)
	}
}
