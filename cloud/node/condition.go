// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// GPUReady is the type of the Node's condition that shows whether the GPUs are ready.
const GPUReady = "nvidia.com/GPUReady"

// The condition's reasons. gpuadm recognises its own conditions by them.
const (
	readyReason   = "GPUsReady"        // while the condition is true
	newBootReason = "NewBoot"          // after a boot
	waitingReason = "WaitingForGPUs"   // while the cluster cannot allocate the GPUs
	busyReason    = "WaitingUntilIdle" // while a change waits until no process uses the GPUs
	failedSuffix  = "Failed"           // of a failure's reason

	// undoneReason marks a condition that gpuadm has withdrawn. gpuadm leaves it with status
	// Unknown: a controller would keep waiting for a missing condition.
	undoneReason = "Undone"
)

// conditionOf returns a Node's condition of a type, nil if it has none.
func conditionOf(n *kube.Node, kind string) *kube.Condition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// conditionState returns a condition as a state. A withdrawn condition counts as missing.
func conditionState(c kube.Condition) converge.State {
	if c.Status == kube.Unknown && c.Reason == undoneReason {
		return ""
	}
	return converge.State(strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)))
}

// conditionFrom returns a state as a condition, without times.
func conditionFrom(kind string, s converge.State) kube.Condition {
	if s == "" {
		return kube.Condition{
			Type:    kind,
			Status:  kube.Unknown,
			Reason:  undoneReason,
			Message: "gpuadm undo was run: gpuadm does not check the GPUs any more",
		}
	}

	status, rest, _ := strings.Cut(string(s), " ")
	reason, message, _ := strings.Cut(rest, " ")
	return kube.Condition{
		Type:    kind,
		Status:  status,
		Reason:  reason,
		Message: message,
	}
}

// trueIn reports whether a condition's state is true for a boot: its message ends in bootMark.
func trueIn(s converge.State, bootID string) bool {
	return conditionFrom("", s).Status == kube.True && strings.HasSuffix(string(s), bootMark(bootID))
}

// bootMark marks the boot at a message's end, with enough of its id to distinguish it from others.
func bootMark(bootID string) string {
	if bootID == "" {
		return ""
	}
	return ", boot " + bootID[max(0, len(bootID)-8):]
}

// readyIn reports whether the GPUs were found ready in a boot.
func readyIn(n *kube.Node, bootID string) bool {
	return trueIn(conditionPart().stateOn(n), bootID)
}

// foreignWrites is for how long after its last report gpuadm assumes that another client still
// writes a condition. Node Problem Detector reports its conditions at least every 5 minutes
// (kubernetes/node-problem-detector, README.md: k8s-exporter-heartbeat-period); an older one was
// left behind.
const foreignWrites = 10 * time.Minute

// foreignReason returns the reason of the condition GPUReady if another client writes it; "" if
// gpuadm does, or if the other has stopped. NVIDIA's and Ryax's examples have Node Problem Detector
// write the same condition every 10 seconds: NVIDIA/gpu-operator, pull 2573,
// examples/cluster-autoscaler/README.md; ryax-engine, charts/worker-k8s/README.md.
func foreignReason(n *kube.Node, now time.Time) string {
	c := conditionOf(n, GPUReady)
	if c == nil || isOwnReason(c.Reason) || now.Sub(c.LastHeartbeatTime) > foreignWrites {
		return ""
	}
	return c.Reason
}

// isOwnReason reports whether gpuadm writes conditions with a reason.
func isOwnReason(reason string) bool {
	own := []string{readyReason, newBootReason, waitingReason, busyReason, undoneReason}
	return slices.Contains(own, reason) || strings.HasSuffix(reason, failedSuffix)
}

// refuseSecondOwner refuses to write a condition that another client writes: the two would
// overwrite each other for ever, and controllers would react to each change.
func (r readyStage) refuseSecondOwner(n *kube.Node, now time.Time) error {
	reason := foreignReason(n, now)
	if reason == "" {
		return nil
	}

	try := []string{"remove the monitor of " + GPUReady + " from Node Problem Detector's configuration; gpuadm takes the condition over 10 minutes later"}
	if !wantsJoin(r.spec) {
		try = append(try, "or remove [node] from node.toml: then the other component alone says when the GPUs are ready")
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot write the condition %s: another component writes it, last with the reason %q", GPUReady, trouble.OneLine(reason)),
		Because: []string{
			"NVIDIA's example for cluster-autoscaler has Node Problem Detector write it every 10 seconds",
			"the node readiness controller adds and removes taints by it",
		},
		Try: try,
		Err: secondOwner,
	}
}
