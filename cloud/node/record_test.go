// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestFormerStartupTaint: a startup taint that node.toml names no more goes off the Node once the
// GPUs are ready, by whichever way it came there, and one of another owner stays.
func TestFormerStartupTaint(t *testing.T) {
	failed := Outcome{
		Stage:  "mig",
		Err:    &trouble.Error{What: "x", Err: trouble.Wait{For: "x"}},
		GaveUp: false,
	}
	for name, c := range map[string]struct {
		before func(*apiNode) // how the node came by it
		after  string         // what node.toml says then
		stays  bool
	}{
		"the guard put it on, none": {func(a *apiNode) { a.apply(); a.Reboot(); a.stages = a.stages[:1]; a.apply() }, `startup_taint = "none"`, false},
		"the guard put it on, another": {
			func(a *apiNode) { a.apply(); a.Reboot(); a.stages = a.stages[:1]; a.apply() },
			`startup_taint = "example.com/other=x:NoSchedule"`, false,
		},
		"kubelet put it on": {func(a *apiNode) {
			a.spec += "wait_for_allocatable = true\n"
			offers(a, a.BootID(), "nvidia.com/gpu", "1")
			a.applyAndReport(failed)
		}, `startup_taint = "none"`, false},
		"it is a lasting one now": {
			func(a *apiNode) { a.apply(); a.Reboot(); a.stages = a.stages[:1]; a.apply() },
			"taints = [\"example.com/starting:NoSchedule\"]\nstartup_taint = \"none\"", true,
		},
		"it has another value": {func(a *apiNode) {
			a.apply()
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				s := n["spec"].(kubesim.Object)
				s["taints"] = append(s["taints"].([]any), kubesim.Object{"key": "example.com/starting", "value": "theirs", "effect": "NoSchedule"})
			})
		}, `startup_taint = "none"`, true},
		"no record": {func(*apiNode) {}, `startup_taint = "none"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec)
			all := a.stages
			c.before(a)
			must.That(t, a.tainted("example.com/starting"), "it is not there before:\n%s", a.shown())
			a.stages = all
			a.spec = strings.Replace(apiSpec, `startup_taint = "example.com/starting:NoSchedule"`, c.after, 1)
			if strings.HasPrefix(c.after, "taints") {
				a.spec = strings.Replace(a.spec, "taints = [\"nvidia.com/gpu=present:NoSchedule\"]\n", "", 1)
			}
			a.Advance(2 * answerServes)
			a.apply()
			got := a.tainted("example.com/starting")
			check.That(t, got == c.stays && a.tainted("theirs.example/busy"), "it stays: %v, want %v:\n%s", got, c.stays, a.shown())
			check.That(t, !a.tainted("example.com/other"), "the new one stays:\n%s", a.shown())
			a.Advance(2 * answerServes)
			res := a.apply()
			check.That(t, res.Run == "", "apply again did %v", res.Made)
		})
	}
}

// applyAndReport is an apply that waits, and the report of it.
func (a *apiNode) applyAndReport(o Outcome) {
	a.t.Helper()
	_, err := a.engine().Apply(a.ctx, a)
	must.That(a.t, trouble.Passes(err), "apply: %v", err)
	must.OK(a.t, a.report(o))
}

// TestFormerStartupTaintWithoutAccount: where no account here may remove it, the message names who
// can.
func TestFormerStartupTaintWithoutAccount(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.Reboot()
	all := a.stages
	a.stages = all[:1]
	a.apply()
	a.stages = all
	a.spec = "[node]\nlabels = { \"example.com/rack\" = \"r7\" }\nstartup_taint = \"none\"\ngpu_labels = false\n"
	a.Advance(2 * answerServes)
	_, err := a.engine().Apply(a.ctx, a)
	faulted(t, "a startup taint that another client must remove", err, noAccount)
}

// TestRecordedLabels: a label that kubelet put on when it registered the node goes once node.toml
// drops it, and no other.
func TestRecordedLabels(t *testing.T) {
	a := apiFixture(t, "\n[node]\nlabels = { \"example.com/rack\" = \"r7\", \"example.com/row\" = \"3\" }\ngpu_labels = false\n")
	a.sim.DeleteNode("gpu-1")
	a.sim.AddNode("gpu-1", map[string]string{"example.com/rack": "r7", "example.com/row": "3", "theirs.example/x": "1"})
	a.apply()
	must.That(t, a.label("example.com/rack") == "r7" && a.label("example.com/row") == "3", "gpuadm's labels are gone:\n%s", a.shown())
	before := len(a.sim.Requests())
	if a.apply(); len(a.sim.Requests()) > before+1 {
		t.Errorf("a converged node costs %v", a.sim.Requests()[before:])
	}
	a.spec = "\n[node]\nlabels = { \"example.com/rack\" = \"r7\" }\ngpu_labels = false\n"
	a.Advance(answerServes * 2)
	a.apply()
	kept := func() bool {
		return a.label("example.com/rack") == "r7" && a.label("theirs.example/x") == "1"
	}
	check.That(t, kept() && a.label("example.com/row") == nil, "after row was dropped from node.toml:\n%s", a.shown())
	a.Advance(answerServes * 2)
	must.Get(a.engine().Undo(a.ctx, a, "all", nil))(t)
	check.That(t, kept(), "undo took off what kubelet had registered:\n%s", a.shown())
}

// TestRecordedTaintsForm: other clients may write the record: what is not a taint, or another owner's,
// is not gpuadm's.
func TestRecordedTaintsForm(t *testing.T) {
	got := recordedTaints("a b:NoSchedule,a=b c:NoSchedule,a=b:Never,a=b,node.kubernetes.io/not-ready:NoExecute,example.com/a=b:NoSchedule")
	check.That(t, slices.Equal(got, []spec.Taint{{
		Key:    "example.com/a",
		Value:  "b",
		Effect: "NoSchedule",
	}}), "got %v", got)
}
