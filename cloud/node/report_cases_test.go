// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestReportAgain: what is no reason to keep pods away when an apply fails is none when the next
// one fails too: the GPUs were found ready in this boot, there is no startup taint to swap, and
// pods run. After a reboot they are kept away, once and for all.
func TestReportAgain(t *testing.T) {
	fails := func(a *apiNode, why string) {
		t.Helper()
		a.Advance(time.Minute)
		must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New(why)}))
	}

	a := apiFixture(t, apiSpec)
	a.apply()
	for _, why := range []string{"x", "y", "y", "z"} {
		fails(a, why)
		check.That(t, !a.tainted(failureTaint().Key) && a.condition() == "False MigFailed "+why, "failed with %s in the boot that it was ready in:\n%s", why, a.shown())
	}

	a.Reboot()
	for _, why := range []string{"z", "x", "x"} {
		fails(a, why)
		check.That(t, a.tainted(failureTaint().Key) && a.condition() == "False MigFailed "+why, "failed with %s after a reboot:\n%s", why, a.shown())
	}

	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}

// TestReportDrift: drift is an Event without secrets, and no word against the GPUs: the condition
// stays.
func TestReportDrift(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	before := a.shown()
	f := a.facts
	f.Live, f.BootID = true, a.BootID()
	err := ReportDrift(a.ctx, impatient(), a, a.engine().Spec, f, "1 change pending: file /etc/x abcdef.0123456789abcdef")
	want := "Warning Drift 1 change pending: file /etc/x (masked) gpuadm\n"
	check.That(t, err == nil && a.told() == want, "%v: %s", err, a.told())
	check.That(t, a.shown() == before, "the Node was changed:\n%s", a.shown())
}

// TestReportAllLost: gpuadm shows the cluster that GPUs are gone, and keeps pods away where only a
// taint can.
func TestReportAllLost(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.Reboot()
	a.Advance(time.Minute)
	a.facts.GPUs, a.facts.Driver = nil, nil
	must.OK(t, a.report(Outcome{Stage: "preflight", Err: errors.New("cannot go on: no GPU")}))
	check.That(t, a.condition() == "False PreflightFailed cannot go on: no GPU" && a.tainted(failureTaint().Key), "the Node:\n%s", a.shown())
}

// TestReportShuts: a node whose apply fails after a reboot before the guard could shut it is kept
// free of pods; one that fails in the boot that it was ready in is only told of: pods run there.
func TestReportShuts(t *testing.T) {
	for _, reboots := range []bool{true, false} {
		a := apiFixture(t, apiSpec)
		a.apply()
		if reboots {
			a.Reboot()
		}
		a.Advance(time.Minute)
		must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
		got := a.tainted(failureTaint().Key)
		check.That(t, got == reboots, "rebooted %v: pods are kept away: %v\n%s", reboots, got, a.shown())
		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}

// said has the Node carry our condition.
func said(a *apiNode, status, reason, message string) {
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["status"].(kubesim.Object)["conditions"] = []any{kubesim.Object{"type": GPUReady, "status": status, "reason": reason, "message": message}}
	})
}

// The message of a condition and of an Event, which many may read, has no secret of an error or of
// a change.
func TestReportIsMasked(t *testing.T) {
	text := "cannot fetch https://robot:hunter2@mirror.example/x?sig=hunter2: token=hunter2, Bearer hunter2hunter2 and " + strings.Repeat("x", maxCondition)
	for _, said := range []string{firstLine(errors.New(text)), madeEvents([]converge.Change{{Stage: "sources", Ref: converge.Ref{Kind: "file", Name: text}}}, "")[0].message} {
		check.That(t, !strings.Contains(said, "hunter2") && strings.Contains(said, "mirror.example"), "%s", said)
		check.That(t, len(said) <= maxCondition, "%d bytes", len(said))
	}
}

// TestUndoOfSilentCluster: gpuadm names an API server that does not answer, or has no time, and
// waits for it, and the next undo restores the Node.
func TestUndoOfSilentCluster(t *testing.T) {
	for name, fault := range map[string]kubesim.Fault{
		"busy":             {Times: -1, Status: http.StatusServiceUnavailable},
		"throttles":        {Times: -1, Status: http.StatusTooManyRequests},
		"takes no changes": {Times: -1, Status: http.StatusServiceUnavailable, On: "PATCH"},
	} {
		a := apiFixture(t, apiSpec)
		a.apply()
		a.Advance(time.Minute)
		a.sim.Fail(fault)
		a.shared.clients.OneTry = true
		_, err := a.engine().Undo(a.ctx, a, "", nil)
		tr := (*trouble.Error)(nil)
		check.That(t, trouble.Passes(err) && errors.As(err, &tr) && len(tr.Try) > 0, "%s: %+v", name, err)
		a.sim.Heal()
		a.Advance(time.Minute)
		_, err = a.engine().Undo(a.ctx, a, "", nil)
		check.OK(t, err)
		check.That(t, a.label("example.com/rack") == nil && !a.tainted("example.com/starting") && !a.tainted(gpuPresent) && a.undone(), "%s: the Node is\n%s", name, a.shown())
	}
}

// TestLostGPUsReportedUndone: what preflight advises where GPUs were taken out for good leads out,
// though gpuadm has shown the cluster their loss.
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
	got := MissingGPUs(a, a.engine().Spec, f)
	check.That(t, got == "", "got %q, the Node:\n%s", got, a.shown())
}

// TestUndoOfReportedNode: what gpuadm itself has told the cluster since keeps no node from being
// undone: a failed apply, and a boot before which the guard shut it.
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
		_, err := a.engine().Undo(a.ctx, a, "all", nil)
		check.That(t, err == nil && a.undone(), "%s: %v, the Node:\n%s", name, err, a.shown())
	}
}

// TestUndoOfFailureTaint: no run of the journal has put on the taint of a failure. Undo takes it off,
// or names it if no account here may. Undo names no taint that is not on the Node: kubectl would
// refuse the line.
func TestUndoOfFailureTaint(t *testing.T) {
	losses := accountLosses()
	losses["the account is there"] = func(*apiNode) {}
	for name, lose := range losses {
		for _, fails := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, a failure %v", name, fails), func(t *testing.T) {
				a := apiFixture(t, apiSpec)
				a.apply()
				a.Reboot()
				a.Advance(time.Minute)
				if fails {
					must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
					must.That(t, a.tainted(failureTaint().Key), "the failure has no taint:\n%s", a.shown())
				}
				lose(a)
				a.Advance(time.Minute)
				kept := ""
				for _, c := range must.Get(a.engine().PlanUndo(a.ctx, a, "all", nil))(t).Kept {
					kept += c.Keeps
				}

				left := a.leftAfter()
				gone := !a.tainted(failureTaint().Key)
				check.That(t, gone == (!fails || name == "the account is there"), "the taint of the failure is gone: %v\n%s", gone, a.shown())
				line := removeTaintCommand("gpu-1", failureTaint())
				check.That(t, strings.Contains(left+kept, line) == !gone, "undo leaves\n%s\nand keeps\n%s", left, kept)
				startup := removeTaintCommand("gpu-1", spec.Taint{
					Key:    "example.com/starting",
					Effect: "NoSchedule",
				})
				check.That(t, a.tainted("example.com/starting") || !strings.Contains(left+kept, startup), "undo leaves\n%s\nand keeps\n%s", left, kept)
			})
		}
	}
}

// TestUndoLeavesLabel: a label that was changed outside gpuadm since stays, undo names it, and all
// else is undone.
func TestUndoLeavesLabel(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)["example.com/rack"] = "theirs"
	})
	a.Advance(time.Minute)
	res, err := a.engine().Undo(a.ctx, a, "all", nil)
	check.That(t, err == nil && len(res.Left) == 1 && strings.HasPrefix(res.Left[0].Cannot, `the label example.com/rack of the node is "theirs", gpuadm had made it "`),
		"%v, left %v", err, res.Left)
}
