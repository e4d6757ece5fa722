// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// migFixture is a joined node with labels, and its part of the manager.
func migFixture(t *testing.T, labels kubesim.Object) (*apiNode, *MIGLabel) {
	t.Helper()
	a := apiFixture(t, apiSpec)
	a.relabel(labels)
	g := a.facts
	g.Live = true
	return a, &MIGLabel{new(Session), identityOf(spec.Spec{}, g)}
}

func (a *apiNode) relabel(labels kubesim.Object) {
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["metadata"].(kubesim.Object)["labels"] = labels
	})
}

// TestMIGLabelLayout: the label names the layout, and the last name counts where there is none, or
// no answer.
func TestMIGLabelLayout(t *testing.T) {
	a, m := migFixture(t, kubesim.Object{"x": "y"})
	says := func(what, layout string, asked bool) FollowedMIG {
		t.Helper()
		m.session.forget()
		f, err := m.Layout(a.ctx, a)
		check.That(t, err == nil && f.Layout == layout && f.Asked == asked, "%s: %+v, %v", what, f, err)
		return f
	}

	says("no label", "", true)
	a.relabel(kubesim.Object{MIGConfig: "all-1g.10gb", migState: MIGFailed})
	f := says("a label", "all-1g.10gb", true)
	check.That(t, f.Kept == "" && f.State == MIGFailed, "the first name: %+v", f)
	must.OK(t, m.Keep(a, f))
	i, err := a.Stat(migKept)
	check.That(t, err == nil && i.Mode.Perm() == 0o600, "the kept name: %v, %v", i.Mode, err)
	a.relabel(kubesim.Object{"x": "y"})
	says("a label that is gone", "all-1g.10gb", true)
	a.relabel(kubesim.Object{MIGConfig: "all-balanced"})
	f = says("another label", "all-balanced", true)
	check.That(t, f.Kept == "all-1g.10gb", "the name before: %+v", f)
	a.sim.Fail(kubesim.Fault{On: "GET", Status: 403})
	says("no answer", "all-1g.10gb", false)
	a.sim.Heal()
	m.identity.later = host.Later{Until: "once kubelet runs"}
	says("a boot", "all-1g.10gb", false)
}

// TestMIGLabelOwner: while the operator's manager may act, gpuadm does not, and says how to choose.
// Sources: gpu-operator, assets/state-mig-manager/0600_daemonset.yaml, and its page "GPU Operator
// with MIG" on docs.nvidia.com.
func TestMIGLabelOwner(t *testing.T) {
	for value, refused := range map[string]bool{"true": true, "false": false, "paused": false} {
		a, m := migFixture(t, kubesim.Object{MIGConfig: "all-balanced", "nvidia.com/gpu.deploy.mig-manager": value})
		_, err := m.Layout(a.ctx, a)
		if refused {
			faulted(t, "the operator's MIG manager", err, managerFollows)
			continue
		}
		check.OK(t, err)
	}
}

// TestMIGLabelProtocol: what is written, in what order, is what the manager writes: reconfigure.go
// of mig-parted, Run. Only a label without a value stays as it is.
func TestMIGLabelProtocol(t *testing.T) {
	const deploy = "nvidia.com/gpu.deploy."
	for _, tt := range []struct {
		what    string
		labels  kubesim.Object
		paused  string
		resumed bool
	}{
		{
			"under the operator",
			kubesim.Object{deploy + "device-plugin": "true", deploy + "dcgm": "false", deploy + "client": "true", deploy + "driver": "true"},
			deploy + "client=paused-for-mig-change " + deploy + "dcgm=false " + deploy + "device-plugin=paused-for-mig-change " + deploy + "driver=true", true,
		},
		{
			"with a client that has no value", // as the operator's nodes have it of NVSM
			kubesim.Object{deploy + "dcgm": "true", deploy + "nvsm": ""},
			deploy + "dcgm=paused-for-mig-change " + deploy + "nvsm=", true,
		},
		{"without it", kubesim.Object{}, "", false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			a, m := migFixture(t, tt.labels)
			for name, selects := range map[string]kubesim.Object{"plugin": {deploy + "device-plugin": "true"}, "job": {}} {
				a.sim.AddPod(kubesim.Object{"metadata": kubesim.Object{"name": name}, "spec": kubesim.Object{"nodeName": "gpu-1", "nodeSelector": selects}})
			}
			before := labelsOf(a, deploy)
			must.OK(t, m.Begin(a.ctx, a))
			check.Equal(t, labelsOf(a, deploy), tt.paused, "paused:")
			check.Equal(t, labelsOf(a, MIGConfig), "nvidia.com/mig.config.state=pending", "begun:")
			for _, state := range []string{MIGSuccess, MIGFailed} {
				resumed, err := m.End(a.ctx, a, state)
				check.That(t, err == nil && resumed == (tt.resumed && state == MIGSuccess), "%s: resumed %v, %v", state, resumed, err)
				check.Equal(t, labelsOf(a, MIGConfig), "nvidia.com/mig.config.state="+state, "ended:")
			}

			got := labelsOf(a, deploy)
			check.That(t, got == before, "resumed: %s, and %s was there before", got, before)
			for _, r := range a.sim.Requests() {
				check.That(t, !strings.Contains(r, "status"), "%s: kubelet's own part was written", r)
			}
		})
	}
}

// TestMIGLabelWaits: Begin returns when the paused pods have ended, and not before.
func TestMIGLabelWaits(t *testing.T) {
	const key = "nvidia.com/gpu.deploy.dcgm"
	a, m := migFixture(t, kubesim.Object{key: "true"})
	// A pod that selects the paused value stays, as one does that takes long to end.
	a.sim.AddPod(kubesim.Object{"metadata": kubesim.Object{"name": "dcgm", "namespace": "gpu"}, "spec": kubesim.Object{"nodeName": "gpu-1", "nodeSelector": kubesim.Object{key: migPaused}}})
	late := &lateNode{Node: a.Node}
	err := m.Begin(a.ctx, late)
	faulted(t, "a client of the GPUs that does not end", err, podsStay)
}

// lateNode is a machine on which each look at the clock takes long.
type lateNode struct{ *simhost.Node }

func (n *lateNode) Now() time.Time { n.Advance(migClientsEnd); return n.Node.Now() }

func labelsOf(a *apiNode, prefix string) string {
	labels, _ := a.sim.Node("gpu-1")["metadata"].(kubesim.Object)["labels"].(kubesim.Object)
	var list []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(key, prefix) {
			list = append(list, fmt.Sprintf("%s=%v", key, labels[key]))
		}
	}

	return strings.Join(list, " ")
}

// TestPodsMIGLabel: the DaemonSet's pod reads its own Node from the cache.
func TestPodsMIGLabel(t *testing.T) {
	n, sim := probePod(t)
	sim.Token(apiSecret, kubesim.User{
		Name:   "system:serviceaccount:gpuadm:gpuadm",
		May:    []string{"get nodes"},
		OnNode: "gpu-1",
	})
	sim.EditNode("gpu-1", func(o kubesim.Object) {
		o["metadata"].(kubesim.Object)["labels"] = kubesim.Object{MIGConfig: "all-balanced"}
	})
	got, err := PodsMIGLabel(t.Context(), n)
	check.That(t, err == nil && got == "all-balanced", "%q, %v", got, err)
}
