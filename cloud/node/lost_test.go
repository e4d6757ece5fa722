// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestLostGPUs: each witness alone distinguishes a machine that had GPUs from one that never had any.
func TestLostGPUs(t *testing.T) {
	for want, set := range map[string]func(*apiNode){
		"": func(*apiNode) {},
		"a p5.48xlarge has 8": func(a *apiNode) {
			a.facts.Cloud.Name, a.facts.Cloud.Type = "aws", "p5.48xlarge"
		},
		"kubelet registers with the label nvidia.com/gpu.count=2": func(a *apiNode) {
			a.facts.Kubelet.Labels = map[string]string{"nvidia.com/gpu.count": "2"}
		},
		"the node was ready with 2 GPUs": func(a *apiNode) { // here, says the journal
			gpus := a.facts.GPUs
			a.facts.GPUs = apiFixture(a.t, apiSpec).facts.GPUs
			a.apply()
			a.facts.GPUs = gpus
			a.sim.DeleteNode("gpu-1")
		},
		"the node has the condition": func(a *apiNode) {
			a.facts.Kubelet.Active = "active"
			said(a, "False", "MigFailed", "x")
		},
		"the node was ready with 4 GPUs": func(a *apiNode) { // and no journal
			a.facts.Kubelet.Active = "active"
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				n["metadata"].(kubesim.Object)["annotations"] = kubesim.Object{gpuRecord: "0000:17:00.0,0000:27:00.0,0000:37:00.0,0000:47:00.0"}
			})
		},
		"a Standard_ND96isr_H100_v5 has 8": func(a *apiNode) {
			a.facts.Kubelet.Active, a.facts.Cloud.Name = "active", "azure"
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)["node.kubernetes.io/instance-type"] = "Standard_ND96isr_H100_v5"
			})
		},
	} {
		a := apiFixture(t, apiSpec)
		a.facts.GPUs = nil
		set(a)
		f := a.facts
		f.Live, f.BootID = true, a.BootID()
		a.sim.Requests()
		got := LostGPUs(a.ctx, a, new(Session), a.engine().Spec, f)
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("want %q, got %q", want, got)
		}
		if f.Kubelet.Active == "" && len(a.sim.Requests()) > 0 {
			t.Errorf("%q: the cluster is asked while kubelet does not run", want)
		}
		f.GPUs = apiFixture(t, apiSpec).facts.GPUs
		if got := LostGPUs(a.ctx, a, new(Session), a.engine().Spec, f); got != "" {
			t.Errorf("%q: with GPUs: %q", want, got)
		}
	}
}

// TestLostGPUsAdvice: each witness has its own way out for who took the GPUs out for good; undo is one only where the journal knows
// of them, or has the label.
func TestLostGPUsAdvice(t *testing.T) {
	for _, test := range []struct {
		name      string
		set       func(*apiNode)
		has, lack string
	}{
		{"type", func(a *apiNode) { a.facts.Cloud.Name, a.facts.Cloud.Type = "aws", "p5.48xlarge" }, "/etc/gpuadm/node.toml", "undo"},
		{"kubelet's label", func(a *apiNode) { a.facts.Kubelet.Labels = map[string]string{"nvidia.com/gpu.count": "2"} }, "node-labels", "nothing"},
		{"journal", func(a *apiNode) {
			gpus := a.facts.GPUs
			a.facts.GPUs = apiFixture(a.t, apiSpec).facts.GPUs
			a.apply()
			a.facts.GPUs = gpus
		}, trouble.Command("undo --to all") + ", then apply again", "kubectl"},
		{"the Node's record of GPUs", func(a *apiNode) {
			a.facts.Kubelet.Active = "active"
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				n["metadata"].(kubesim.Object)["annotations"] = kubesim.Object{gpuRecord: "0000:17:00.0,0000:27:00.0,0000:37:00.0,0000:47:00.0"}
			})
		}, "kubectl delete node gpu-1", "undo"},
		{"the Node's failure", func(a *apiNode) {
			a.facts.Kubelet.Active = "active"
			said(a, "False", "MigFailed", "x")
		}, "kubectl delete node gpu-1", "undo"},
		{"the Node's type", func(a *apiNode) {
			a.facts.Kubelet.Active, a.facts.Cloud.Name = "active", "azure"
			a.sim.EditNode("gpu-1", func(n kubesim.Object) {
				n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)["node.kubernetes.io/instance-type"] = "Standard_ND96isr_H100_v5"
			})
		}, "/etc/gpuadm/node.toml", "undo"},
	} {
		a := apiFixture(t, apiSpec)
		a.facts.GPUs = nil
		test.set(a)
		f := a.facts
		f.Live, f.BootID = true, a.BootID()
		l := WhyLost(a.ctx, a, new(Session), a.engine().Spec, f)
		if l.Why == "" || !strings.Contains(l.Meant, test.has) || strings.Contains(l.Meant, test.lack) || !strings.HasPrefix(l.Meant, "if ") {
			t.Errorf("%s: %+v", test.name, l)
		}
	}
}

// TestLostGPUsUndone: what was undone is no witness.
func TestLostGPUsUndone(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	f := a.facts
	f.Live, f.GPUs, f.Kubelet.Active = true, nil, "active"
	if LostGPUs(a.ctx, a, new(Session), a.engine().Spec, f) == "" {
		t.Fatal("there is no witness before")
	}
	if _, err := a.engine().Undo(a.ctx, a, "all", nil); err != nil {
		t.Fatal(err)
	}
	a.Advance(time.Minute)
	if got := LostGPUs(a.ctx, a, new(Session), a.engine().Spec, f); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestReportAllLost: gpuadm shows the cluster that GPUs are gone, and keeps pods away where only a taint can.
func TestReportAllLost(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.Reboot()
	a.Advance(time.Minute)
	a.facts.GPUs, a.facts.Driver = nil, nil
	if err := a.report(Outcome{Stage: "preflight", Err: errors.New("cannot go on: no GPU")}); err != nil {
		t.Fatal(err)
	}
	if got := a.shown(); !strings.Contains(got, "False PreflightFailed cannot go on: no GPU") || !strings.Contains(got, "status-taint.cluster-autoscaler.kubernetes.io/gpu=failed") {
		t.Errorf("the Node:\n%s", got)
	}
}

// TestReportShuts: a node whose apply fails after a reboot before the guard could shut it is kept free of pods; one that fails
// in the boot that it was ready in is only told of: pods run there.
func TestReportShuts(t *testing.T) {
	for _, reboots := range []bool{true, false} {
		a := apiFixture(t, apiSpec)
		a.apply()
		if reboots {
			a.Reboot()
		}
		a.Advance(time.Minute)
		if err := a.report(Outcome{Stage: "mig", Err: errors.New("x")}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(a.shown(), "status-taint"); got != reboots {
			t.Errorf("rebooted %v: pods are kept away: %v\n%s", reboots, got, a.shown())
		}
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
