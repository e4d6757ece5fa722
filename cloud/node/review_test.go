// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestAPIDownOnce: a server that does not answer is asked once for all things together, not once
// for each.
func TestAPIDownOnce(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.shared.clients.OneTry = true
	a.sim.Fail(kubesim.Fault{On: "GET", Times: -1, Status: 503})
	must.Get(a.engine().Plan(a.ctx, a))(t)
	got := a.sim.Requests()
	check.That(t, len(got) == 1, "one plan asked %d times", len(got))
}

// TestAPIOneNode: a change is of the Node that was looked at: not of one that has its name in
// another cluster, or took its place.
func TestAPIOneNode(t *testing.T) {
	a := apiFixture(t, apiSpec)
	first := true
	a.sim.Fail(kubesim.Fault{On: "PATCH", Times: 1, Do: func(s *kubesim.Server) {
		if !first {
			return
		}
		first = false
		s.EditNode("gpu-1", func(n kubesim.Object) {
			n["metadata"].(kubesim.Object)["uid"] = "another"
		})
	}})
	a.apply()
	conflicts := 0
	for _, r := range a.sim.Requests() {
		if strings.HasPrefix(r, "GET") {
			conflicts++
		}
	}

	check.That(t, conflicts == 2, "the other Node was changed without a look at it: %d looks", conflicts)
}

// TestStartupTaintDropped: a startup taint that the spec no longer asks for still goes once the
// GPUs are ready; what others put on by the same key stays.
func TestStartupTaintDropped(t *testing.T) {
	auto, failed := autoscalerTaint(), "status-taint.cluster-autoscaler.kubernetes.io/gpu"
	for _, c := range []struct {
		value string
		stays bool
	}{{"pending", false}, {"theirs", true}} {
		a := apiFixture(t, strings.Replace(apiSpec, `"example.com/starting:NoSchedule"`, `"none"`, 1))
		a.sim.EditNode("gpu-1", func(n kubesim.Object) {
			sp := n["spec"].(kubesim.Object)
			sp["taints"] = append(sp["taints"].([]any), kubesim.Object{"key": auto.Key, "value": c.value, "effect": auto.Effect},
				kubesim.Object{"key": failed, "value": "failed", "effect": "NoSchedule"})
		})
		a.apply()
		check.That(t, a.tainted(auto.Key) == c.stays && !a.tainted(failed), "with the value %s:\n%s", c.value, a.shown())
		a.Advance(time.Minute)
		res := a.apply()
		check.That(t, res.Run == "", "apply again did %v", res.Made)
	}
}

// TestReportNoNews: that another run is at work, or that pods hold the GPUs, says nothing against
// the GPUs.
func TestReportNoNews(t *testing.T) {
	for _, err := range []error{&host.Busy{}, &trouble.Error{What: "in use", Err: converge.ErrInUse}} {
		a := apiFixture(t, apiSpec)
		a.apply()
		rerr := a.report(Outcome{Stage: "runtime", Err: err})
		check.That(t, rerr == nil && strings.HasPrefix(a.condition(), "True"), "%v: %v, %s", err, rerr, a.condition())
	}
}

// TestReportLost: a machine that has lost all GPUs that the spec expects does not go on calling
// itself ready.
func TestReportLost(t *testing.T) {
	a := apiFixture(t, apiSpec+"[driver]\ngpu_count = 2\n")
	a.apply()
	a.facts.GPUs, a.facts.Driver = nil, nil
	err := a.report(Outcome{Stage: "preflight", Err: errors.New("2 GPUs are missing")})
	check.That(t, err == nil && strings.HasPrefix(a.condition(), "False"), "%v, %s", err, a.condition())
}

// TestAPIStandingCost: what the spec has dropped costs no look of its own, and undo looks once too.
func TestAPIStandingCost(t *testing.T) {
	a := apiFixture(t, strings.Replace(apiSpec, `"example.com/rack"`, `"example.com/c" = "c", "example.com/d" = "d", "example.com/rack"`, 1))
	a.apply()
	a.spec = apiSpec
	a.Advance(time.Minute)
	a.apply()
	a.Advance(time.Minute)
	a.sim.Requests()
	res := a.apply()
	check.That(t, res.Run == "", "apply again did %v", res.Made)
	got := a.sim.Requests()
	check.That(t, len(got) == 1, "requests of a converged node: %v", got)
	a.Advance(time.Minute)
	must.Get(a.engine().Undo(a.ctx, a, "all", nil))(t)
	got = a.sim.Requests()
	check.That(t, len(got) <= 5, "requests of an undo: %v", got)
	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}

// TestAPIAnotherMachine: a machine that was cloned with the certificate of another one's kubelet
// leaves that one's Node alone.
func TestAPIAnotherMachine(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.facts.MachineID = "0123456789abcdef0123456789abcdef"
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["status"] = kubesim.Object{"nodeInfo": kubesim.Object{"machineID": "ffffffffffffffffffffffffffffffff"}}
	})
	before := a.shown()
	_, err := a.engine().Apply(a.ctx, a)
	faulted(t, "another machine's node", err, anotherMachine)
	check.Equal(t, a.shown(), before, "the Node is")
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["status"] = kubesim.Object{"nodeInfo": kubesim.Object{"machineID": a.facts.MachineID}}
	})
	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}
