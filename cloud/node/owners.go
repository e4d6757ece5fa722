// SPDX-License-Identifier: Apache-2.0

package node

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// ownerOf names the owner of a label or taint key that gpuadm must never change; "" if the key has
// no owner. Two writers of one key overwrite each other for ever, or, as with the marks of spot
// nodes, mislead a scheduler.
func ownerOf(key string) (owner string) {
	if slices.Contains([]string{
		"node.kubernetes.io/exclude-from-external-load-balancers", "node.kubernetes.io/exclude-disruption", // for operators to set
		"kubernetes.azure.com/accelerator", // AKS sets it on the machines of its pools alone; cluster-autoscaler reads it elsewhere too
	}, key) {
		return ""
	}
	keeps := func(kept string) bool {
		return key == kept || strings.HasSuffix(kept, "/") && strings.HasPrefix(key, kept)
	}
	for _, p := range platform.All() {
		if slices.ContainsFunc(p.Labels, keeps) {
			return p.Title
		}
	}
	for row := range strings.Lines(ownerRows) {
		if kept, owner, ok := strings.Cut(strings.TrimSpace(row), "\t"); ok && keeps(kept) {
			return owner
		}
	}
	return ""
}

//go:embed owners.tsv
var ownerRows string

// refuseForeign refuses a spec that asks for a label or taint that another owner keeps.
func refuseForeign(s spec.Spec) error {
	for _, key := range slices.Sorted(maps.Keys(s.Node.Labels)) {
		if owner := ownerOf(key); owner != "" {
			return foreignTrouble("label", key, owner)
		}
	}
	for _, t := range s.Node.Taints {
		if owner := ownerOf(t.Key); owner != "" {
			return foreignTrouble("taint", t.String(), owner)
		}
	}
	return nil
}

func foreignTrouble(what, name, owner string) error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot set the %s %s: it is %s's to set", what, name, owner),
		Try:  []string{fmt.Sprintf("drop it from %ss in [node], and set it where %s is configured", what, owner)}, Err: foreignKey,
	}
}

// foreignServes is how long gpuadm assumes that another client still writes a condition. Node
// Problem Detector writes its conditions at least each 5 minutes (kubernetes/node-problem-detector,
// README.md: k8s-exporter-heartbeat-period); what is older was left behind.
const foreignServes = 10 * time.Minute

// foreignReason returns the reason of the condition GPUReady if another client writes it; "" if
// gpuadm does, or if the other has stopped. NVIDIA's and Ryax's examples have Node Problem Detector
// write the same condition every 10 seconds: NVIDIA/gpu-operator, pull 2573,
// examples/cluster-autoscaler/README.md; ryax-engine, charts/worker-k8s/README.md.
func foreignReason(n *kube.Node, now time.Time) string {
	c := conditionOf(n, GPUReady)
	if c == nil || slices.Contains([]string{readyReason, newBootReason, waitingReason, busyReason, undoneReason}, c.Reason) ||
		strings.HasSuffix(c.Reason, failedSuffix) || now.Sub(c.LastHeartbeatTime) > foreignServes {
		return ""
	}
	return c.Reason
}

// refuseSecondOwner refuses to write a condition that another client writes: the two would
// overwrite each other for ever, and controllers would react to each change.
func refuseSecondOwner(n *kube.Node, now time.Time) error {
	reason := foreignReason(n, now)
	if reason == "" {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot write the condition %s: another component writes it, last with the reason %q", GPUReady, trouble.OneLine(reason)),
		Because: []string{
			"NVIDIA's example for cluster-autoscaler has Node Problem Detector write it every 10 seconds",
			"the node readiness controller acts on it: it adds and removes taints by it",
		},
		Try: []string{
			"remove the monitor of " + GPUReady + " from Node Problem Detector's configuration; gpuadm takes the condition over 10 minutes later",
			"or remove [node] from node.toml: then the other component alone says when the GPUs are ready",
		}, Err: secondOwner,
	}
}

// repairWaits waits while a component that monitors the hardware reports a fault: gpuadm lets no
// pods onto a node that is about to be repaired. gpuadm changes none of these conditions.
func repairWaits(n *kube.Node) error {
	for _, c := range n.Status.Conditions {
		who, acts := repairer(c)
		if who == "" {
			continue
		}
		return trouble.Wait{
			For: fmt.Sprintf("%s reports %s=%s (%s)", who, c.Type, c.Status, trouble.OneLine(c.Reason)),
			Try: []string{acts, "kubectl describe node " + n.Name + " has the message; gpuadm does not change this condition"}, Err: underRepair,
		}
	}
	return nil
}

// repairer names the component whose condition reports faulty hardware, and what acts on it; "" if
// the condition reports none. Sources: aws/eks-node-monitoring-agent, pkg/conditions/conditions.go
// and docs/node-health-issues.adoc, and
// https://docs.aws.amazon.com/eks/latest/userguide/node-repair.html; NVIDIA/NVSentinel,
// docs/INTEGRATIONS.md, and https://docs.nvidia.com/nvsentinel/components/fault-quarantine.
func repairer(c kube.Condition) (who, acts string) {
	switch {
	case c.Type == "AcceleratedHardwareReady" && c.Status == kube.False:
		return "EKS's node monitoring agent", "where it is enabled, EKS's node auto repair reboots or replaces the node after 10 minutes; Karpenter replaces it if its NodeRepair is on"
	case c.Status == kube.True && (strings.HasPrefix(c.Type, "Gpu") && strings.HasSuffix(c.Type, "Watch") || strings.HasPrefix(c.Type, "SysLogs") ||
		slices.Contains([]string{"NVSwitchFatalError", "NVSwitchDown"}, c.Type)):
		return "NVSentinel", "NVSentinel cordons the node, drains it and has it repaired, as its rules say"
	}
	return "", ""
}
