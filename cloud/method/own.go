// SPDX-License-Identifier: Apache-2.0

package method

import (
	"bytes"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Kept is the file with gpuadm's facts about the cluster and the machine. A converged node reads
// it, and asks no service. It is in kubelet's folder, so that an operator who clears that removes
// it too.
const Kept = "/var/lib/kubelet/gpuadm-cluster.json"

// SetsUpKubelet says whether the join sets up kubelet itself: then stage node, which adds labels
// and taints to the files of another owner's kubelet, has nothing to do.
func SetsUpKubelet(s spec.Spec, f facts.Facts) bool {
	own := platform.OwnMethodIn(f.Cloud.Name)
	isOwn := own != "" && Of(s, f) == own
	return isOwn && f.Cloud.Managed == "" && !HasOtherKubelet(f)
}

// HasOtherKubelet says whether another tool has already made the machine a node: then that tool
// owns kubelet's files.
func HasOtherKubelet(f facts.Facts) bool {
	k := f.Kubelet
	if k.Joined && k.Kubeconfig != "" && k.Kubeconfig != kubelet.Kubeconfig {
		return true // k3s and many others have their own places
	}
	found, ok := f.Files[kubelet.Kubeconfig]
	return ok && !bytes.HasPrefix(found, []byte(kubelet.Written)) && !SetUpByGpuadm(f)
}

// ClusterRef returns the cluster about which facts are needed; nil if gpuadm does not join the
// machine itself.
func ClusterRef(s spec.Spec) *instance.ClusterRef {
	isOwn := platform.Of(s.Join.Method).Join.Own
	if !isOwn && s.Join.Method != "auto" {
		return nil
	}
	return &instance.ClusterRef{
		Name:     s.Join.Cluster,
		Region:   s.Join.Region,
		Via:      Via(s),
		Kept:     Kept,
		NodeName: s.Join.NodeName,
		Stated:   s.Join.Server != "" && s.Join.CAFile != "" && s.Join.ServiceCIDR != "",
	}
}

// cloudName returns the node's future name, if it is known.
func cloudName(s spec.Spec, f facts.Facts) string {
	if f.Cluster == nil || !SetsUpKubelet(s, f) {
		return ""
	}
	return f.Cluster.PrivateDNS
}
