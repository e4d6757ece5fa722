// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// hybridNode is a machine of one's own, on which nodeadm for hybrid nodes is installed.
func hybridNode(t *testing.T) *simhost.Node {
	return joins.Recorded(t, "debian13-containerd17", map[string]string{"/opt/nodeadm/tracker": "x"})
}

// TestHybrid: gpuadm hands the machine over to nodeadm. It says what nodeadm must be given and called
// with, and waits for it.
func TestHybrid(t *testing.T) {
	n := hybridNode(t)
	e := cloudEngine(specs.Of(t, "[join]\nmethod = \"auto\"\n[node]\ngpu_labels = false\nlabels = { \"example.com/team\" = \"a\" }\n"))
	e.Stages = append(e.Stages, Joined(new(node.Session)))

	_, err := e.Apply(t.Context(), n)
	must.That(t, err != nil && trouble.Passes(err), "%v", err)
	message := err.Error() + joins.Because(err)
	check.Has(t, message, "nodeadm to join this machine", "apply says")
	check.Has(t, message, platform.Of("eks-hybrid").Join.Init, "apply says")

	p := must.Get(e.Plan(t.Context(), n))(t)
	notes := strings.Join(p.Notes, "\n")
	check.Has(t, notes, "nodeadm of EKS Hybrid Nodes joins this machine", "the plan notes")
	check.Has(t, notes, "--node-labels=example.com/team=a", "the plan notes")
}

// hybridWants are the wants of stage join for a hybrid node with these facts.
func hybridWants(t *testing.T, change func(*facts.Facts)) ([]converge.Want, error) {
	s := specs.Of(t, "[join]\nmethod = \"auto\"\nregion = \"us-west-2\"\n")
	f, err := facts.Gather(t.Context(), hybridNode(t), Join(new(node.Session)).Needs(s))
	must.OK(t, err)
	change(&f)
	return joinWants(new(node.Session), s, f)
}

// TestHybridJoined: once nodeadm has joined the machine, gpuadm asks nothing of AWS.
func TestHybridJoined(t *testing.T) {
	wants, err := hybridWants(t, func(f *facts.Facts) { f.Kubelet.Joined = true })
	check.That(t, err == nil && len(wants) == 0, "%v %v", wants, err)
}

// TestHybridRefused: a kubelet that does not start with the machine's cgroups is refused before the
// join.
func TestHybridRefused(t *testing.T) {
	_, err := hybridWants(t, func(f *facts.Facts) {
		f.Cgroup = 1
		f.Kubelet.Version = "1.36.0"
	})
	must.That(t, err != nil, "not refused")
	check.Has(t, err.Error(), "cgroup v1", "it says")
}
