// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestLostGPUsReportedUndone: what preflight advises where GPUs were taken out for good leads out, though gpuadm has shown the
// cluster their loss.
func TestLostGPUsReportedUndone(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.Advance(time.Minute)
	a.facts.GPUs, a.facts.Driver, a.facts.Kubelet.Active = nil, nil, "active"
	must.OK(t, a.report(Outcome{Stage: "preflight", Err: errors.New("cannot go on: no GPU")}))
	a.Advance(time.Minute)
	must.Get(a.engine().Undo(a.ctx, a, "all", nil))(t)
	a.Advance(time.Minute)
	f := a.facts
	f.Live = true
	if got := MissingGPUs(a, a.engine().Spec, f); got != "" {
		t.Errorf("got %q, the Node:\n%s", got, a.shown())
	}
}

// TestUndoOfReportedNode: what gpuadm itself has told the cluster since keeps no node from being undone: a failed apply, and a
// boot before which the guard shut it.
func TestUndoOfReportedNode(t *testing.T) {
	for name, since := range map[string]func(*apiNode){
		"a failed apply": func(a *apiNode) {
			must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
		},
		"another boot": func(a *apiNode) { a.Reboot(); a.Advance(time.Minute); a.apply() },
		"a failed apply after another boot": func(a *apiNode) {
			a.Reboot()
			a.Advance(time.Minute)
			a.apply()
			a.Advance(time.Minute)
			must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
		},
		"another startup taint, and a boot": func(a *apiNode) {
			a.spec = strings.Replace(apiSpec, "example.com/starting:", "example.com/other:", 1)
			a.Reboot()
			a.Advance(time.Minute)
			a.apply()
		},
		"a repaired failure": func(a *apiNode) {
			must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
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

// TestUndoTellsOfTaint: the taint of a failure, which no run of the journal has put on, does not stay on a Node without a word.
func TestUndoTellsOfTaint(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.Reboot()
	a.Advance(time.Minute)
	must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
	a.Advance(time.Minute)
	told := ""
	e := a.engine()
	e.Tell = func(ev converge.Event) { told += ev.Text + "\n" }
	p := must.Get(e.PlanUndo(a.ctx, a, "all", nil))(t)
	said := ""
	for _, c := range p.Kept {
		said += c.Keeps + "\n"
	}
	must.Get(e.Undo(a.ctx, a, "all", nil))(t)
	want := "the node keeps the taint " + failureTaint().String() + " if the last report to the cluster was a failure; remove it with: kubectl taint node NODE "
	if strings.Count(said, want) != 1 || strings.Count(told, want) != 1 {
		t.Errorf("the plan of the undo says: %s\nundo says: %s\nwant: %s", said, told, want)
	}
}

// TestUndoLeavesLabel: a label that was changed outside gpuadm since stays, undo names it, and all else is undone.
func TestUndoLeavesLabel(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)["example.com/rack"] = "theirs"
	})
	a.Advance(time.Minute)
	res, err := a.engine().Undo(a.ctx, a, "all", nil)
	if err != nil || len(res.Left) != 1 || !strings.HasPrefix(res.Left[0].Cannot, `the label example.com/rack of the node is "theirs", gpuadm had made it "`) {
		t.Errorf("%v, left %v", err, res.Left)
	}
}
