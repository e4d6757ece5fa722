// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

func (a *apiNode) report(o Outcome) error {
	a.t.Helper()
	f := a.facts
	f.Live, f.BootID = true, a.BootID()
	return Report(kube.Within(a.ctx, 0), new(Session), a, a.engine().Spec, f, o)
}

// told are the Events, one a line.
func (a *apiNode) told() string {
	var b strings.Builder
	for _, e := range a.sim.Events() {
		fmt.Fprintf(&b, "%v %v %v %v\n", e["type"], e["reason"], e["message"], e["source"].(kubesim.Object)["component"])
	}
	return b.String()
}

// TestReport: gpuadm reports a failure once, by the condition, an Event and the other taint; and revokes all of it when the GPUs
// are ready.
func TestReport(t *testing.T) {
	a := apiFixture(t, apiSpec)
	failed := Outcome{
		Made:  []converge.Change{{Stage: "packages", Ref: converge.Ref{Kind: "package", Name: "a"}}, {Stage: "packages", Ref: converge.Ref{Kind: "package", Name: "b"}}, {Stage: "mig", Ref: converge.Ref{Kind: "mig", Name: "0"}}},
		Stage: "module-load", Err: &trouble.Error{What: "cannot load nvidia: it is\nfor another kernel\n" + strings.Repeat("x", 2000), Try: []string{"no " + apiSecret}},
	}
	must.OK(t, a.report(failed))
	check.Equal(t, a.condition(), "False ModuleLoadFailed cannot load nvidia: it is", "the condition:")
	want := `Normal PackagesMade packages: 2 changes: package a, package b gpuadm
Normal MigMade mig: mig 0 gpuadm
Warning ModuleLoadFailed cannot load nvidia: it is gpuadm
`
	if a.told() != want {
		t.Errorf("the Events:\n%s", a.told())
	}
	got := a.shown()
	if strings.Contains(got, "example.com/starting") || !strings.Contains(got, "taint status-taint.cluster-autoscaler.kubernetes.io/gpu=failed:NoSchedule") {
		t.Errorf("the taints:\n%s", got)
	}
	a.sim.Requests()
	failed.Made = nil
	if err := a.report(failed); err != nil || a.told() != want {
		t.Errorf("told twice: %v\n%s", err, a.told())
	}
	if got := a.sim.Requests(); len(got) != 1 {
		t.Errorf("requests when there is nothing new: %v", got)
	}
	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}

// TestReportWaits: that a server was busy is no news of the GPUs; that they are not offered is.
func TestReportWaits(t *testing.T) {
	a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
	offers(a, a.BootID(), "nvidia.com/gpu", "2")
	a.apply()
	wait := Outcome{Stage: "ready", Err: &trouble.Error{What: "x", Err: trouble.Wait{For: "the server"}}}
	if err := a.report(wait); err != nil || !strings.HasPrefix(a.condition(), "True") || a.told() != "" {
		t.Errorf("a busy server: %v, %s, %s", err, a.condition(), a.told())
	}
	offers(a, a.BootID(), "nvidia.com/gpu", "1")
	if err := a.report(wait); err != nil || a.condition() != "False WaitingForGPUs not yet: the node offers 1 of 2 nvidia.com/gpu" {
		t.Errorf("too few GPUs: %v, %s", err, a.condition())
	}
	wait.GaveUp = true
	if err := a.report(wait); err != nil || !strings.HasPrefix(a.condition(), "False ReadyFailed") {
		t.Errorf("given up: %v, %s", err, a.condition())
	}
}

// TestReportQuiet: gpuadm asks nothing where there is nothing to report or no cluster to report it to, and a cluster that does not
// answer is an error of its own.
func TestReportQuiet(t *testing.T) {
	for name, set := range map[string]func(*apiNode){
		"not joined": func(a *apiNode) { a.facts.Kubelet.Joined = false },
		"no GPU":     func(a *apiNode) { a.facts.GPUs = nil },
		"no section": func(a *apiNode) { a.spec = "[mig]\n" },
	} {
		a := apiFixture(t, apiSpec)
		set(a)
		err := a.report(Outcome{Stage: "mig", Err: errors.New("x")})
		check.That(t, err == nil && len(a.sim.Requests()) == 0, "%s: %v", name, err)
	}
	a := apiFixture(t, apiSpec)
	err := a.report(Outcome{})
	check.That(t, err == nil && len(a.sim.Requests()) == 0, "nothing to tell: %v", err)
	a.sim.Fail(kubesim.Fault{Times: -1, Status: 503})
	err = a.report(Outcome{Stage: "mig", Err: errors.New("x")})
	check.That(t, errors.Is(err, kube.Busy), "got %v", err)
}

// TestReportHealthyNode: a failure that touched nothing marks no node for an autoscaler that gpuadm never made ready: the node may be
// a healthy one of AKS's or GKE's, with pods on it. What touched something, or what was ready once, is marked.
func TestReportHealthyNode(t *testing.T) {
	const failed = "status-taint.cluster-autoscaler"
	for _, c := range []struct {
		name    string
		started bool // the startup taint is on the node
		made    []converge.Change
		marked  bool
	}{
		{"nothing touched", false, nil, false},
		{"packages touched", false, []converge.Change{{Stage: "packages", Ref: converge.Ref{Kind: "package", Name: "a"}}}, true},
		{"nothing touched, and the node waits for gpuadm", true, nil, true},
	} {
		a := apiFixture(t, apiSpec)
		if !c.started {
			a.sim.EditNode("gpu-1", func(n kubesim.Object) { delete(n["spec"].(kubesim.Object), "taints") })
		}
		must.OK(t, a.report(Outcome{Stage: "runtime", Made: c.made, Err: errors.New("cannot use the handler")}))
		if got := strings.Contains(a.shown(), failed); got != c.marked {
			t.Errorf("%s: marked %v\n%s", c.name, got, a.shown())
		}
	}
}
