// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestLostGPUsReportedUndone: what preflight advises where GPUs were taken out for good leads out, though the cluster was told of
// their loss.
func TestLostGPUsReportedUndone(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.Advance(time.Minute)
	a.facts.GPUs, a.facts.Driver, a.facts.Kubelet.Active = nil, nil, "active"
	if err := a.report(Outcome{Stage: "preflight", Err: errors.New("cannot go on: no GPU")}); err != nil {
		t.Fatal(err)
	}
	a.Advance(time.Minute)
	if _, err := a.engine().Undo(a.ctx, a, "all", nil); err != nil {
		t.Fatal(err)
	}
	a.Advance(time.Minute)
	f := a.facts
	f.Live = true
	if got := LostGPUs(a.ctx, a, new(Session), a.engine().Spec, f); got != "" {
		t.Errorf("got %q, the Node:\n%s", got, a.shown())
	}
}

// TestUndoOfReportedNode: what gpuadm itself has told the cluster since keeps no node from being undone: a failed apply, and a
// boot before which the guard shut it.
func TestUndoOfReportedNode(t *testing.T) {
	for name, since := range map[string]func(*apiNode){
		"a failed apply": func(a *apiNode) {
			if err := a.report(Outcome{Stage: "mig", Err: errors.New("x")}); err != nil {
				t.Fatal(err)
			}
		},
		"another boot": func(a *apiNode) { a.Reboot(); a.Advance(time.Minute); a.apply() },
		"a failed apply after another boot": func(a *apiNode) {
			a.Reboot()
			a.Advance(time.Minute)
			a.apply()
			a.Advance(time.Minute)
			if err := a.report(Outcome{Stage: "mig", Err: errors.New("x")}); err != nil {
				t.Fatal(err)
			}
		},
		"another startup taint, and a boot": func(a *apiNode) {
			a.spec = strings.Replace(apiSpec, "example.com/starting:", "example.com/anew:", 1)
			a.Reboot()
			a.Advance(time.Minute)
			a.apply()
		},
		"a repaired failure": func(a *apiNode) {
			if err := a.report(Outcome{Stage: "mig", Err: errors.New("x")}); err != nil {
				t.Fatal(err)
			}
			a.Advance(time.Minute)
			a.apply()
		},
	} {
		a := apiFixture(t, apiSpec)
		a.apply()
		a.Advance(time.Minute)
		since(a)
		a.Advance(time.Minute)
		if _, err := a.engine().Undo(a.ctx, a, "all", nil); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := a.shown(); !strings.Contains(got, undoneReason) {
			t.Errorf("%s: the Node:\n%s", name, got)
		}
	}
}
