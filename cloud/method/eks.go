// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package method

import (
	"bytes"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// EKSKept is what was found out about the cluster and the machine. A converged node reads it, and asks no service. It lies
// with kubelet's own files, so that an operator who clears those clears it too.
const EKSKept = "/var/lib/kubelet/gpuadm-eks.json"

// ECRConfig is where EKS's images have the configuration of kubelet's plugin that logs in to ECR, beside the plugin.
const ECRConfig = "/etc/eks/image-credential-provider/config.json"

// EKSOwn says whether the join sets up kubelet itself: then the stage that puts labels and taints into the files of a kubelet of
// another owner has nothing to do.
func EKSOwn(s spec.Spec, f facts.Facts) bool {
	return Of(s, f) == "eks" && f.Cloud.Managed == "" && f.Cloud.Name == "aws" && !EKSOthers(f)
}

// EKSOthers says whether another tool has made the machine a node already: its kubelet's files are theirs.
func EKSOthers(f facts.Facts) bool {
	if k := f.Kubelet; k.Joined && k.Kubeconfig != "" && k.Kubeconfig != kubelet.Kubeconfig { // k3s and many others have their own places
		return true
	}
	there, ok := f.Files[kubelet.Kubeconfig]
	return ok && !bytes.HasPrefix(there, []byte(kubelet.Written)) && !SetUpByGpuadm(f)
}

// EKSRef says which cluster must be known; nil where EKS is not joined. Of machines with EKS's own tools nothing is asked.
func EKSRef(s spec.Spec) *instance.ClusterRef {
	if s.Join.Method != "eks" && s.Join.Method != "auto" {
		return nil
	}
	return &instance.ClusterRef{
		Name: s.Join.Cluster, Region: s.Join.Region, Via: Via(s), Kept: EKSKept, NodeName: s.Join.NodeName,
		Stated: s.Join.Server != "" && s.Join.CAFile != "" && s.Join.ServiceCIDR != "",
	}
}

// eksName is what the node will be called, where that is known.
func eksName(s spec.Spec, f facts.Facts) string {
	if f.Cluster == nil || !EKSOwn(s, f) {
		return ""
	}
	return f.Cluster.PrivateDNS
}
