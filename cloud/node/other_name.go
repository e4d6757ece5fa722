// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// refuseOtherName waits if kubelet registers another Node than the one of its credentials, and no
// longer reports to that one: the API server lets a kubelet change no Node but its own, and what
// the Node still shows is what an earlier kubelet has reported. A kubelet that was started before
// the machine got another name goes on, and so does one whose Node a cloud provider in kubelet has
// named (before Kubernetes 1.31).
// Sources: https://kubernetes.io/docs/reference/access-authn-authz/node/; kubernetes,
// pkg/kubelet/kubelet_node_status.go (a kubelet reports once when it starts, then at least each
// nodeStatusReportFrequency).
func (id identity) refuseOtherName(ctx context.Context, v host.View, n *kube.Node) error {
	if id.node == "" || n.Name == id.node || id.reportsTo(ctx, v, n) {
		return nil
	}
	return trouble.Wait{
		For: fmt.Sprintf("kubelet has the credentials of the Node %s, and registers as %s, which the cluster refuses", n.Name, id.node),
		Try: []string{
			"if the new name is a mistake: hostnamectl set-hostname " + n.Name + "; systemctl restart " + id.unitName(),
			"else have the machine join again under its new name: " + trouble.Command("doctor KUB-017") + " says more",
		},
		Err: otherName,
	}
}

// reportsTo reports whether the kubelet that runs now has reported to a Node. Kubelet's clock is
// the machine's; the times of a Node have seconds.
func (id identity) reportsTo(ctx context.Context, v host.View, n *kube.Node) bool {
	ready := conditionOf(n, "Ready")
	if ready == nil || ready.Status == kube.Unknown {
		return false
	}
	if id.unit == "" || ready.LastHeartbeatTime.IsZero() {
		return true
	}
	unit, err := v.Unit(ctx, id.unit)
	if err != nil || unit.Started.IsZero() {
		return true
	}
	return !ready.LastHeartbeatTime.Add(time.Second).Before(unit.Started)
}

// unitName is kubelet's unit in a command for an operator.
func (id identity) unitName() string { return cmp.Or(id.unit, "kubelet") }

// seeKubelet returns the command that shows how kubelet is.
func (id identity) seeKubelet() string {
	return fmt.Sprintf("systemctl status %[1]s; journalctl -u %[1]s", id.unitName())
}

// waitForKubelet waits while the cluster does not hear of kubelet: then the Node takes no pod,
// whatever its GPUs are.
// Source: https://kubernetes.io/docs/reference/node/node-status/ ("Unknown if the node controller
// has not heard from the node").
func (r readyStage) waitForKubelet(n *kube.Node) error {
	ready := conditionOf(n, "Ready")
	if ready == nil || ready.Status != kube.Unknown {
		return nil
	}
	return trouble.Wait{
		For: "the cluster has not heard of kubelet since " + ready.LastHeartbeatTime.UTC().Format(time.RFC3339),
		Try: []string{
			r.identity.seeKubelet(),
			trouble.Command("doctor") + ", which finds the cause and names the fix",
		},
		Err: notReported,
	}
}
