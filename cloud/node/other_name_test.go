// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// setReady sets the condition Ready of the Node, as kubelet or the node controller does.
func (a *apiNode) setReady(status string, heartbeat time.Time) {
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		conditions, _ := n["status"].(kubesim.Object)["conditions"].([]any)
		for _, c := range conditions {
			if o := c.(kubesim.Object); o["type"] == "Ready" {
				o["status"] = status
				o["reason"] = "NodeStatusUnknown"
				o["lastHeartbeatTime"] = heartbeat.UTC().Format(time.RFC3339)
			}
		}
	})
}

// restart is a new process of gpuadm, which knows nothing of the cluster yet.
func (a *apiNode) restart() {
	a.shared = new(Session)
	a.stages = []converge.Stage{a.with(NewGuard(a.shared)), a.with(NewReady(a.shared, nil, oldEngine))}
}

// TestRenamed: the machine has another name than the Node of kubelet's certificate. While kubelet
// reports to that Node nothing is wrong. Once it does not, the Node in the cluster shows a kubelet
// that is no more: apply and status wait, and name both.
func TestRenamed(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.facts.Kubelet.NodeName = "gpu-2"
	a.restart()
	a.Advance(time.Minute)
	res := a.apply()
	check.That(t, res.Run == "", "kubelet runs under its former name, and an apply did %v", res.Made)

	a.setReady("Unknown", a.Now())
	a.Advance(time.Minute)
	_, err := a.engine().Apply(a.ctx, a)
	faulted(t, "a renamed machine", err, otherName)
	must.That(t, trouble.Passes(err), "it does not pass: %v", err)
	for _, name := range []string{"gpu-1", "gpu-2"} {
		check.Has(t, err.Error(), name, "apply says")
	}

	left := a.leftAfter()
	check.That(t, a.undone() && left == "", "an undo on the former Node: %s\n%s", a.condition(), left)
}

// TestSilentKubelet: the cluster no longer hears of kubelet, so the Node takes no pod, whatever its
// GPUs are.
func TestSilentKubelet(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.setReady("Unknown", a.Now())
	a.Advance(time.Minute)
	_, err := a.engine().Apply(a.ctx, a)
	faulted(t, "a kubelet that does not report", err, notReported)
	must.That(t, trouble.Passes(err), "it does not pass: %v", err)

	a.setReady("True", a.Now())
	a.Advance(time.Minute)
	res := a.apply()
	check.That(t, res.Run == "", "kubelet reports again, and an apply did %v", res.Made)
}

// TestLogOfKubeletsUnit: the commands name the unit that kubelet has here, which is another one in a
// snap and with K3s.
func TestLogOfKubeletsUnit(t *testing.T) {
	const unit = "snap.kubelet-eks.daemon.service"
	s := spec.Spec{Node: spec.Node{WaitForAllocatable: true}}
	f := facts.Facts{BootID: "b", Kubelet: facts.Kubelet{Unit: unit}}
	v := must.Get(simhost.New(nil))(t).View()

	ask := newNodeAsk(new(Session), s, f, "gpu-1", "/etc/kubeconfig")
	notReady := ask.givesUp(newReportedWait(v, time.Minute), "it is not ready", nil)
	_, try := detailsOf(notReady)
	check.Says(t, strings.Join(try, "\n"), "journalctl -u "+unit)

	var silent trouble.Wait
	err := newReadyStage(new(Session), s, f).waitForOffer(t.Context(), v, &kube.Node{})
	must.That(t, errors.As(err, &silent), "%v", err)
	check.Says(t, strings.Join(silent.Try, "\n"), "journalctl -u "+unit)
}

// TestMachineIDChanged: the advice for a changed machine id names the unit of the kubelet here: on
// k3s and on a snap none is called kubelet.
func TestMachineIDChanged(t *testing.T) {
	const snap = "snap.k8s.kubelet.service"
	id := identity{
		unit:      snap,
		machineID: "0123456789abcdef0123456789abcdef",
	}
	node := &kube.Node{}
	node.Name = "gpu-1"
	node.Status.NodeInfo.MachineID = "ffffffffffffffffffffffffffffffff"

	_, err := id.own(node, nil)
	wait := trouble.Wait{}
	must.That(t, errors.As(err, &wait), "it is %v", err)
	check.Has(t, strings.Join(wait.Try, "\n"), "systemctl restart "+snap, "the advice")
}
