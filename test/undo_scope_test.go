// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
)

// Undo of an unknown run lists the runs that there are, whether or not there is a spec to ask status with.
func TestUndoToNoRun(t *testing.T) {
	n := node(t)
	e := edition(t, 1)
	undoable := func() string {
		t.Helper()
		_, err := e.Undo(t.Context(), n, "runtime", nil)
		tr := (*trouble.Error)(nil)
		if !errors.As(err, &tr) || len(tr.Because) == 0 {
			t.Fatalf("got %+v", err)
		}
		return tr.Because[0]
	}
	if got := undoable(); got != "no run is left to undo here" {
		t.Errorf("before any run: %q", got)
	}
	var all []string
	for i := range 8 {
		all = append(all, apply(t, n, edition(t, i)).Run)
	}
	if got, want := undoable(), "these runs can be undone: "+strings.Join(all[2:], ", ")+", and 2 before"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	undo(t, n, e, all[1])
	if got, want := undoable(), "these runs can be undone: "+all[0]; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A plan to undo nothing has lists that a program can read.
func TestUndoPlanOfNothing(t *testing.T) {
	p := must.Get(edition(t, 1).PlanUndo(t.Context(), node(t), "", nil))(t)
	if b, _ := json.Marshal(p); strings.Contains(string(b), "null") {
		t.Errorf("%s", b)
	}
}
