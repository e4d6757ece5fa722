// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestHybrid: a machine of one's own with nodeadm for hybrid nodes is handed over: what nodeadm is
// to be given and called with is said, and it is waited for.
func TestHybrid(t *testing.T) {
	n := joins.Recorded(t, "debian13-containerd17", map[string]string{"/opt/nodeadm/tracker": "x"})
	e := cloudEngine(joins.Spec(t, "[join]\nmethod = \"auto\"\n[node]\ngpu_labels = false\nlabels = { \"example.com/team\" = \"a\" }\n"))
	e.Stages = append(e.Stages, Joined(new(node.Session)))
	_, err := e.Apply(t.Context(), n)
	must.That(t, err != nil && trouble.Passes(err), "%v", err)
	for _, want := range []string{"nodeadm to join this machine", platform.Of("eks-hybrid").Join.Init} {
		check.Has(t, err.Error()+joins.Because(err), want, "want")
	}
	p := must.Get(e.Plan(t.Context(), n))(t)
	for _, want := range []string{"nodeadm of EKS Hybrid Nodes joins this machine", "--node-labels=example.com/team=a"} {
		check.Has(t, strings.Join(p.Notes, "\n"), want, "the plan notes")
	}
}

// TestHybridJoined: once nodeadm has joined it nothing of AWS is asked.
func TestHybridJoined(t *testing.T) {
	n := joins.Recorded(t, "debian13-containerd17", map[string]string{"/opt/nodeadm/tracker": "x"})
	s := joins.Spec(t, "[join]\nmethod = \"auto\"\nregion = \"us-west-2\"\n")
	f, err := facts.Gather(t.Context(), n, Join(new(node.Session)).Needs(s))
	joins.Must(t, err)
	f.Kubelet.Joined = true
	wants, err := joinWants(new(node.Session), s, f)
	check.That(t, err == nil && len(wants) == 0, "%v %v", wants, err)
	f.Kubelet.Joined, f.Cgroup, f.Kubelet.Version = false, 1, "1.36.0"
	_, err = joinWants(new(node.Session), s, f)
	check.That(t, err != nil && strings.Contains(err.Error(), "cgroup v1"), "%v", err)
}
