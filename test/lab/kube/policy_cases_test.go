// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// deniedRequests are what a stolen node would ask for. The policy that is in force allows node-role.kubernetes.io/* and
// node-restriction.kubernetes.io/tenant by its list, and denies them all the same.
func deniedRequests() []policyRequest {
	const (
		restricted = "node-restriction.kubernetes.io/"
		role       = "node-role.kubernetes.io/"
		quarantine = "example.org/quarantine"
		meta       = "only labels and annotations in the metadata"
		spec       = "only taints in the spec"
		status     = "only the condition nvidia.com/GPUReady"
		own        = "only the Node that its pod runs on"
	)
	ready := condition(node.GPUReady, "True")
	return []policyRequest{
		{what: "a restricted label", edit: label(restricted+"x", "y"), says: restricted + "x of its Node: keys of"},
		{what: "a restricted label of the list, changed", edit: label(restricted+"tenant", "blue"), says: neverKey},
		{what: "a restricted label of the list, removed", edit: noLabel(restricted + "tenant"), says: neverKey},
		{what: "a restricted label of a subdomain", edit: label("a."+restricted+"x", "y"), says: neverKey},
		{what: "a restricted label by the status", at: "/status", edit: label(restricted+"x", "y"), says: neverKey},
		{what: "a role of the list", edit: label(role+"control-plane", ""), says: role + "control-plane"},
		{what: "a role removed", edit: noLabel(role + "worker"), says: neverKey},
		{what: "the host's name", edit: label("kubernetes.io/hostname", "other"), says: "kubernetes.io/hostname"},
		{what: "the zone", edit: label("topology.kubernetes.io/zone", "b"), says: "topology.kubernetes.io/zone of its Node: the list is the " + notListed},
		{what: "a label that is not listed", edit: label("example.com/other", "x"), says: "example.com/other"},
		{what: "a label without a domain", edit: label("pool", "gpu"), says: notListed},
		{what: "a longer key than the listed one", edit: label("example.com/racks", "x"), says: "example.com/racks"},
		{what: "a domain that begins as a listed one", edit: label("nvidia.com.example.org/gpu", "x"), says: notListed},
		{what: "one of two labels", edit: all(label("nvidia.com/a", "x"), label("example.com/other", "x")), says: "the key example.com/other of"},
		{what: "an annotation", edit: annotation("cluster-autoscaler.kubernetes.io/scale-down-disabled", "true"), says: "scale-down-disabled"},
		{what: "an annotation removed", edit: noAnnotation("volumes.kubernetes.io/controller-managed-attach-detach"), says: "controller-managed-attach-detach"},
		{what: "the quarantine taken off", edit: taintIs(quarantine, "", ""), says: quarantine},
		{what: "the quarantine with another value", edit: taintIs(quarantine, "value", "no"), says: quarantine},
		{what: "the quarantine with a weaker effect", edit: taintIs(quarantine, "effect", "PreferNoSchedule"), says: quarantine},
		{what: "all taints taken off", edit: field("spec", "taints", nil), says: quarantine},
		{what: "a taint of a role of the list taken off", edit: taintIs(role+"control-plane", "", ""), says: neverKey},
		{what: "a taint that is not listed", edit: taint("example.com/busy", "NoExecute"), says: "example.com/busy"},
		{what: "Kubernetes' own taint", edit: taint("node.kubernetes.io/out-of-service", "NoExecute"), says: "node.kubernetes.io/out-of-service"},
		{what: "no cordon", edit: field("spec", "unschedulable", nil), says: spec},
		{what: "the provider's id", edit: field("spec", "providerID", "aws:///x/i-1"), says: spec},
		{what: "the pods' network", edit: all(field("spec", "podCIDR", "10.9.0.0/24"), field("spec", "podCIDRs", []any{"10.9.0.0/24"})), says: spec},
		{what: "a finalizer, which keeps the Node from being deleted", edit: field("metadata", "finalizers", []any{"example.com/stay"}), says: meta},
		// With an owner that is not there the garbage collector deletes the Node. Here it owns itself, and stays for the test.
		{what: "an owner", edit: ownerItself, says: meta},
		{what: "kubelet's condition", at: "/status", edit: condition("Ready", "False"), says: status},
		{what: "kubelet's condition removed", at: "/status", edit: condition("MemoryPressure", ""), says: status},
		{what: "a condition of another domain", at: "/status", edit: condition("example.com/Fine", "True"), says: status},
		{what: "our condition, and capacity", at: "/status", edit: all(ready, field("status", "capacity", kube.Object{"cpu": "8", "nvidia.com/gpu": "80"})), says: status},
		{what: "allocatable", at: "/status", edit: field("status", "allocatable", kube.Object{"cpu": "7"}), says: status},
		{what: "addresses", at: "/status", edit: field("status", "addresses", []any{kube.Object{"type": "InternalIP", "address": "10.0.0.9"}}), says: status},
		{what: "images", at: "/status", edit: field("status", "images", []any{kube.Object{"names": []any{"registry.invalid/b:1"}, "sizeBytes": 1}}), says: status},
		{what: "attached volumes", at: "/status", edit: field("status", "volumesInUse", []any{"kubernetes.io/csi/x"}), says: status},
		{what: "another Node", on: "foreign", edit: label("nvidia.com/x", "y"), says: own},
		{what: "another Node's status", on: "foreign", at: "/status", edit: ready, says: own},
		{what: "a Node, with no pod's token", free: true, edit: label("nvidia.com/x", "y"), says: own},
		{what: "a Node's status, with no pod's token", free: true, at: "/status", edit: ready, says: own},
	}
}

func ownerItself(n kube.Object) {
	field("metadata", "ownerReferences", []any{kube.Object{
		"apiVersion": "v1", "kind": "Node", "name": kube.Text(n, "metadata", "name"), "uid": kube.Text(n, "metadata", "uid"),
	}})(n)
}

// passingRequests are what gpuadm asks for.
func passingRequests() []policyRequest {
	const starting, failed = "startup-taint.cluster-autoscaler.kubernetes.io/gpu", "status-taint.cluster-autoscaler.kubernetes.io/gpu"
	return []policyRequest{
		{what: "no change", edit: nil},
		{what: "a label of NVIDIA's", edit: label("nvidia.com/gpu.present", "true")},
		{what: "a label of NVIDIA's changed", edit: label("nvidia.com/gpu.count", "7")},
		{what: "a label of NVIDIA's removed", edit: noLabel("nvidia.com/gpu.count")},
		{what: "a listed label", edit: label("example.com/rack", "r8")},
		{what: "a label of a listed domain", edit: label("rack.example.com/row", "2")},
		{what: "the record of labels", edit: annotation("nvidia.com/gpuadm.labels", "a=c")},
		{what: "the record of labels removed", edit: noAnnotation("nvidia.com/gpuadm.labels")},
		{what: "a taint of NVIDIA's beside others", edit: taint("nvidia.com/gpu", "NoSchedule")},
		{what: "the startup taint off", edit: taintIs(starting, "", "")},
		{what: "the startup taint swapped for a failure's", edit: all(taintIs(starting, "", ""), taint(failed, "NoSchedule"))},
		{what: "the startup taint for Karpenter", edit: taint("readiness.k8s.io/gpu", "NoSchedule")},
		{what: "a listed taint", edit: taint("example.com/rack", "NoExecute")},
		{what: "label, record and taint in one", edit: all(label("nvidia.com/x", "y"), annotation("nvidia.com/gpuadm.gpus", "2"), taintIs(starting, "", ""))},
		{what: "the condition", at: "/status", edit: condition(node.GPUReady, "True")},
		{what: "the condition removed", at: "/status", edit: condition(node.GPUReady, "")},
	}
}
