// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestEvict: what the API server answers to an eviction, by
// pkg/registry/core/pod/storage/eviction.go of Kubernetes: also a budget that does not let the pod
// go, and two budgets, which it says in a Status under 201.
func TestEvict(t *testing.T) {
	pod := func(name string) Pod {
		return Pod{Meta: Meta{Namespace: "ml", Name: name, UID: "uid-" + name}}
	}
	for name, tt := range map[string]struct {
		node  string
		set   func(*kubesim.Server)
		why   Why
		words string
		fails bool
	}{
		"goes":      {node: "gpu-1"},
		"a budget":  {"gpu-1", func(s *kubesim.Server) { s.OnEvict(func(string) string { return "keep" }) }, Busy, "The disruption budget keep needs 1 healthy pods and has 1 currently", true},
		"gone":      {"gpu-1", func(s *kubesim.Server) { s.DeletePod("ml", "a") }, Missing, "", true},
		"elsewhere": {"gpu-2", nil, Forbidden, "can only evict pods with spec.nodeName set to itself", true},
		"another of its name": {"gpu-1", func(s *kubesim.Server) {
			s.DeletePod("ml", "a")
			s.AddPod(kubesim.Object{"metadata": kubesim.Object{"namespace": "ml", "name": "a", "uid": "new"}, "spec": kubesim.Object{"nodeName": "gpu-1"}})
		}, Conflict, "", true},
		"two budgets": {"gpu-1", func(s *kubesim.Server) {
			s.Fail(kubesim.Fault{Status: 201, Body: `{"kind":"Status","status":"Failure","code":500,"message":"This pod has more than one PodDisruptionBudget"}`})
		}, Busy, "more than one PodDisruptionBudget", true},
	} {
		t.Run(name, func(t *testing.T) {
			c, sim, _ := fixture(t)
			sim.AddPod(kubesim.Object{"metadata": kubesim.Object{"namespace": "ml", "name": "a", "uid": "uid-a"}, "spec": kubesim.Object{"nodeName": tt.node}})
			if tt.set != nil {
				tt.set(sim)
			}
			err := c.Within(0).Evict(t.Context(), pod("a"))
			check.That(t, tt.fails || err == nil, "%v", err)
			if tt.fails {
				wants(t, err, tt.why, tt.words)
			}
		})
	}

	c, sim, _ := fixture(t)
	wants(t, c.Evict(t.Context(), Pod{Meta: Meta{Namespace: "../x", Name: "a"}}), Refused)
	asked := sim.Requests()
	check.That(t, asked == nil, "a name that is none was asked for: %v", asked)
}
