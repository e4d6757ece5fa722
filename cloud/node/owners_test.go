// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
)

func TestOwnerOf(t *testing.T) {
	for key, want := range map[string]string{
		"eks.amazonaws.com/capacityType":                          "EKS",
		"eks.amazonaws.com/nodegroup":                             "EKS",
		"karpenter.sh/capacity-type":                              "Karpenter",
		"karpenter.sh/unregistered":                               "Karpenter",
		"karpenter.k8s.aws/instance-gpu-count":                    "Karpenter",
		"cloud.google.com/gke-spot":                               "GKE",
		"cloud.google.com/gke-provisioning":                       "GKE",
		"cloud.google.com/gke-accelerator":                        "GKE",
		"cloud.google.com.node-restriction.kubernetes.io/x":       "GKE",
		"kubernetes.azure.com/scalesetpriority":                   "AKS",
		"kubernetes.azure.com/accelerator":                        "",
		"node.kubernetes.io/not-ready":                            "Kubernetes",
		"node.kubernetes.io/instance-type":                        "Kubernetes",
		"node.kubernetes.io/exclude-from-external-load-balancers": "",
		"node.cloudprovider.kubernetes.io/uninitialized":          "the cloud controller manager",
		"kubernetes.io/hostname":                                  "kubelet",
		"ToBeDeletedByClusterAutoscaler":                          "cluster-autoscaler",
		"nvidia.com/gfd.timestamp":                                "GPU Feature Discovery",
		"nvidia.com/gpu":                                          "",
		"nvidia.com/gpu.product":                                  "",
		"node-role.kubernetes.io/gpu":                             "",
		"topology.kubernetes.io/zone":                             "",
		"feature.node.kubernetes.io/pci-10de.present":             "",
		"accelerator":                                             "",
		"karpenter.sh":                                            "",
		"xkarpenter.sh/nodepool":                                  "",
		"kubernetes.io/hostnames":                                 "",
		"readiness.k8s.io/gpu":                                    "",
		"":                                                        "",
	} {
		got := ownerOf(key)
		check.That(t, got == want, "%q is %q's, want %q", key, got, want)
	}
}

// TestOursAreNotForeign holds what we set ourselves against the list of others'.
func TestOursAreNotForeign(t *testing.T) {
	keys := []string{gpuPresent, karpenterTaint().Key, autoscalerTaint().Key}
	for _, f := range []facts.Facts{{Cloud: instance.Cloud{Name: "aws"}}, {}} {
		f.GPUs = []facts.PCI{{Class: "030200"}}
		for key := range autoscalerLabels(f) {
			keys = append(keys, key)
		}
	}
	check.That(t, len(keys) == 4, "keys %v", keys)
	for _, key := range keys {
		owner := ownerOf(key)
		check.That(t, owner == "", "%s is %s's", key, owner)
	}
}

func TestRefuseForeign(t *testing.T) {
	for _, c := range []struct {
		node spec.Node
		want string
	}{
		{spec.Node{Labels: map[string]string{"example.com/a": "b"}, Taints: []spec.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: "NoSchedule"}}}, ""},
		{spec.Node{Labels: map[string]string{"cloud.google.com/gke-spot": "true"}}, "cannot set the label cloud.google.com/gke-spot: it is GKE's to set"},
		{
			spec.Node{Taints: []spec.Taint{{Key: "kubernetes.azure.com/scalesetpriority", Value: "spot", Effect: "NoSchedule"}}},
			"cannot set the taint kubernetes.azure.com/scalesetpriority=spot:NoSchedule: it is AKS's to set",
		},
	} {
		err := refuseForeign(spec.Spec{Node: c.node})
		told := (*trouble.Error)(nil)
		switch {
		case c.want == "" && err != nil, c.want != "" && (!errors.As(err, &told) || told.What != c.want):
			t.Errorf("%v, want %q", err, c.want)
		case c.want != "" && (len(told.Try) != 1 || !strings.Contains(told.Try[0], "[node]")):
			t.Errorf("no fix: %+v", told)
		}
	}
}
