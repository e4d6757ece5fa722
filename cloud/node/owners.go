// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// ownerOf names the owner of a label or taint key that gpuadm must never change; "" where the writer alone keeps it.
// Two sides that write one key take it from each other for ever, or, as with the marks of spot nodes, lie to a scheduler.
func ownerOf(key string) (owner string) {
	if slices.Contains([]string{
		"node.kubernetes.io/exclude-from-external-load-balancers", "node.kubernetes.io/exclude-disruption", // for people to set
		"kubernetes.azure.com/accelerator", // AKS sets it on the machines of its pools alone; cluster-autoscaler reads it elsewhere too
	}, key) {
		return ""
	}
	for _, o := range owners() {
		if key == o.key || strings.HasSuffix(o.key, "/") && strings.HasPrefix(key, o.key) {
			return o.name
		}
	}
	return ""
}

type owner struct {
	key  string // a domain with its slash, or one key
	name string
}

// owners lists who keeps what.
func owners() []owner {
	return []owner{
		// https://kubernetes.io/docs/reference/labels-annotations-taints/: conditions as taints, and what kubelet says of itself.
		{"node.kubernetes.io/", "Kubernetes"},
		{"node.cloudprovider.kubernetes.io/", "the cloud controller manager"},
		{"kubernetes.io/hostname", "kubelet"},
		{"kubernetes.io/os", "kubelet"},
		{"kubernetes.io/arch", "kubelet"},
		{"beta.kubernetes.io/", "kubelet"},
		// https://karpenter.sh/docs/concepts/scheduling/, "well-known labels"; karpenter.sh/capacity-type marks spot nodes.
		{"karpenter.sh/", "Karpenter"},
		{"karpenter.k8s.aws/", "Karpenter"},
		{"karpenter.azure.com/", "Karpenter"},
		{"karpenter.k8s.gcp/", "Karpenter"},
		// https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html; eks.amazonaws.com/capacityType marks spot nodes.
		{"eks.amazonaws.com/", "EKS"},
		{"topology.k8s.aws/", "EKS"},
		{"alpha.eksctl.io/", "eksctl"},
		// https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms and .../node-taints: gke-spot, gke-provisioning, gke-accelerator.
		{"cloud.google.com/", "GKE"},
		{"cloud.google.com.node-restriction.kubernetes.io/", "GKE"},
		{"iam.gke.io/", "GKE"},
		{"node.gke.io/", "GKE"},
		// https://learn.microsoft.com/azure/aks/use-labels, "reserved system labels"; scalesetpriority marks spot nodes.
		{"kubernetes.azure.com/", "AKS"},
		{"node.kubernetes.azure.com/", "AKS"},
		// https://github.com/kubernetes/autoscaler, cluster-autoscaler/utils/taints: it takes a node away.
		{"ToBeDeletedByClusterAutoscaler", "cluster-autoscaler"},
		{"DeletionCandidateOfClusterAutoscaler", "cluster-autoscaler"},
		// https://github.com/NVIDIA/gpu-operator, controllers/state_manager.go; mig-parted's deployments.
		{"nvidia.com/gpu-driver-upgrade-state", "the GPU Operator"},
		{"nvidia.com/mig.config.state", "NVIDIA's MIG manager"},
		{"nvidia.com/gfd.timestamp", "GPU Feature Discovery"},
	}
}

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
		Try:  []string{fmt.Sprintf("drop it from %ss in [node], and set it where %s is configured", what, owner)},
	}
}
