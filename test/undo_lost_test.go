// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
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
		j, err := converge.ReadJournal(n), error(nil)
		must.OK(t, err)
		blob := converge.Home + "/blobs/" + strings.Fields(string(j.Runs()[0].Makes[0].Before))[2]
		must.OK(t, spoil(n, blob))
		all := n.Tree()
		for _, plans := range []bool{true, false} {
			if plans {
				_, err = e.PlanUndo(t.Context(), n, "", nil)
			} else {
				_, err = e.Undo(t.Context(), n, "", nil)
			}
			tr := (*trouble.Error)(nil)
			if !errors.As(err, &tr) || !strings.Contains(tr.What, "cannot undo file /srv/a: ") || !strings.Contains(tr.What, path.Base(blob)) {
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

// A journal that cannot be read costs undo, which says so, and nothing else: the next change moves it aside.
func TestUnreadableJournal(t *testing.T) {
	n := node(t)
	if err := n.Mkdir(converge.Home, host.Attr{Mode: 0o700}); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	must.OK(t, n.Mkdir(journal, host.Attr{Mode: 0o700}))
	e := edition(t, 1)
	if p := plan(t, n, e); p.Now() == 0 {
		t.Error("the plan is empty")
	}
	if s, err := e.Status(t.Context(), n); err != nil || !strings.Contains(s.Damage, journal) {
		t.Errorf("status: %v, damage %q", err, s.Damage)
	}
	if _, err := e.Undo(t.Context(), n, "", nil); err == nil || !strings.Contains(err.Error(), "cannot read "+journal) {
		t.Errorf("undo: %v", err)
	}
	apply(t, n, e)
	if res := undo(t, n, e, ""); len(res.Made) == 0 {
		t.Error("what was changed after it cannot be undone")
	}
	names, err := n.ReadDir(converge.Home)
	if err != nil || !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "journal.jsonl.unreadable-") }) {
		t.Errorf("it is not kept aside: %v, %v", names, err)
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
