// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// impatient returns a session whose clients do not retry requests.
func impatient() *Session {
	return &Session{clients: kube.Clients{OneTry: true}}
}

func (a *apiNode) report(o Outcome) error {
	a.t.Helper()
	f := a.facts
	f.Live, f.BootID = true, a.BootID()
	return Report(a.ctx, impatient(), a, a.engine().Spec, f, o)
}

// told are the Events, one a line.
func (a *apiNode) told() string {
	var b strings.Builder
	for _, e := range a.sim.Events() {
		fmt.Fprintf(&b, "%v %v %v %v\n", e["type"], e["reason"], e["message"], e["source"].(kubesim.Object)["component"])
	}
	return b.String()
}

// TestReport: gpuadm reports a failure once, by the condition, an Event and the other taint; and
// revokes all of it when the GPUs are ready.
func TestReport(t *testing.T) {
	a := apiFixture(t, apiSpec)
	failed := Outcome{
		Made: []converge.Change{{
			Stage: "packages",
			Ref:   converge.Ref{Kind: "package", Name: "a"},
		}, {Stage: "packages", Ref: converge.Ref{
			Kind: "package",
			Name: "b",
		}}, {Stage: "mig", Ref: converge.Ref{Kind: "mig", Name: "0"}}},
		Stage: "module-load", Err: &trouble.Error{
			What: "cannot load nvidia: it is\nfor another kernel\n" + strings.Repeat("x", 2000),
			Try:  []string{"no " + apiSecret},
		},
	}
	must.OK(t, a.report(failed))
	check.Equal(t, a.condition(), "False ModuleLoadFailed cannot load nvidia: it is", "the condition:")
	want := `Normal PackagesMade packages: 2 changes: package a, package b gpuadm
Normal MigMade mig: mig 0 gpuadm
Warning ModuleLoadFailed cannot load nvidia: it is gpuadm
`
	check.That(t, a.told() == want, "the Events:\n%s", a.told())
	check.That(t, !a.tainted("example.com/starting") && a.tainted(failureTaint().Key), "the taints:\n%s", a.shown())
	a.sim.Requests()
	failed.Made = nil
	err := a.report(failed)
	check.That(t, err == nil && a.told() == want, "told twice: %v\n%s", err, a.told())
	got := a.sim.Requests()
	check.That(t, len(got) == 1, "requests when there is nothing new: %v", got)
	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}

// TestReportWaits: that a server was busy is no news of the GPUs; that they are not offered is.
func TestReportWaits(t *testing.T) {
	a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
	offers(a, a.BootID(), "nvidia.com/gpu", "2")
	a.apply()
	wait := Outcome{
		Stage: "ready",
		Err:   &trouble.Error{What: "x", Err: trouble.Wait{For: "the server"}},
	}
	err := a.report(wait)
	check.That(t, err == nil && strings.HasPrefix(a.condition(), "True") && a.told() == "", "a busy server: %v, %s, %s", err, a.condition(), a.told())
	offers(a, a.BootID(), "nvidia.com/gpu", "1")
	err = a.report(wait)
	check.That(t, err == nil && a.condition() == "False WaitingForGPUs not yet: the node offers 1 of 2 nvidia.com/gpu", "too few GPUs: %v, %s", err, a.condition())
	wait.GaveUp = true
	err = a.report(wait)
	check.That(t, err == nil && strings.HasPrefix(a.condition(), "False ReadyFailed"), "given up: %v, %s", err, a.condition())
}

// TestReportQuiet: gpuadm asks nothing where there is nothing to report or no cluster to report it
// to, and a cluster that does not answer is an error of its own.
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
	must.OK(t, a.report(Outcome{Stage: "ready", Err: err})) // which the apply has said itself
}

// TestReportHealthyNode: a failure that touched nothing marks no node for an autoscaler that gpuadm
// never made ready: the node may be a healthy one of AKS's or GKE's, with pods on it. What touched
// something, or what was ready once, is marked.
func TestReportHealthyNode(t *testing.T) {
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
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				delete(n["spec"].(kubesim.Object), "taints")
			})
		}

		must.OK(t, a.report(Outcome{
			Stage: "runtime",
			Made:  c.made,
			Err:   errors.New("cannot use the handler"),
		}))
		got := a.tainted(failureTaint().Key)
		check.That(t, got == c.marked, "%s: marked %v\n%s", c.name, got, a.shown())
	}
}

// TestWaitsTell: a run says at once what it waits for, since when and until when, and then with
// each look, every 15 seconds at most.
func TestWaitsTell(t *testing.T) {
	a := apiFixture(t, apiSpec)
	said(a, "False", "x", "x")
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["status"].(kubesim.Object)["conditions"] = []any{kubesim.Object{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "cni plugin not initialized"}}
	})
	var told []string
	ctx := converge.Listen(a.ctx, func(_ converge.What, text string) {
		told = append(told, text)
	})
	slept := time.Duration(0)
	j := joined{nodeAsk{
		identity: identity{node: "gpu-1", kubelet: apiKubelet},
		session:  new(Session),
		pause:    func(_ context.Context, d time.Duration) error { slept += d; return nil },
	}}
	err := j.Make(ctx, a, isReady)
	must.That(t, trouble.Passes(err) && errors.Is(err, waitedEnough), "got %v", err)
	first := a.Now()
	most := int(readyPatience/reportEvery) + 2
	check.That(t, len(told) >= most/2 && len(told) <= most, "told %d times in %v", len(told), slept)
	check.That(t, len(told) > 0 && strings.Contains(told[0], "node gpu-1: it is not ready: KubeletNotReady: cni plugin not initialized; waiting since "+first.Format("15:04")),
		"told %q", told)
}

// TestWaitsEnd: the time that questions take counts: a silent server does not make a wait of
// minutes one of hours.
func TestWaitsEnd(t *testing.T) {
	a := apiFixture(t, apiSpec)
	asked := 0
	a.sim.Fail(kubesim.Fault{
		On:     "GET",
		Times:  -1,
		Status: 503,
		Do:     func(*kubesim.Server) { asked++ },
	})
	r := registered{nodeAsk: nodeAsk{identity: identity{node: "gpu-1", kubelet: apiKubelet}, session: impatient(), pause: func(context.Context, time.Duration) error { a.Advance(30 * time.Second); return nil }}} // as if the question had taken it
	err := r.wait(a.ctx, a, registerPatience, nil)
	check.That(t, trouble.Passes(err) && asked <= 8, "asked %d times: %v", asked, err)
}

// TestWaitsSeldom: a kubelet that is quick is seen at once, and thousands that are slow do not ask
// the API server every second: in five minutes a node asks some forty times, at other moments than
// its neighbours, and the server's cache answers.
func TestWaitsSeldom(t *testing.T) {
	waits := func() (pauses []time.Duration, asked []string) {
		a := apiFixture(t, apiSpec)
		a.sim.EditNode("gpu-1", func(n kubesim.Object) {
			n["status"].(kubesim.Object)["conditions"] = []any{kubesim.Object{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}}
		})
		j := joined{nodeAsk{
			identity: identity{node: "gpu-1", kubelet: apiKubelet},
			session:  new(Session),
			pause:    func(_ context.Context, d time.Duration) error { pauses = append(pauses, d); return nil },
		}}
		err := j.Make(a.ctx, a, isReady)
		must.That(t, trouble.Passes(err), "got %v", err)
		return pauses, a.sim.Requests()
	}

	pauses, asked := waits()
	check.That(t, len(asked) >= 20 && len(asked) <= 60, "asked %d times", len(asked))
	for _, r := range asked {
		check.That(t, r == "GET /api/v1/nodes/gpu-1 cached", "asked %s", r)
	}
	early := pauses[0] + pauses[1] + pauses[2]
	check.That(t, early <= 6*time.Second, "the first three pauses take %v", early)
	for i, d := range pauses {
		check.That(t, d <= 15*time.Second && (i <= 4 || d >= 2*time.Second), "pause %d is %v", i, d)
	}
	others, _ := waits()
	check.That(t, !slices.Equal(others, pauses), "two nodes ask at the same moments")
}
