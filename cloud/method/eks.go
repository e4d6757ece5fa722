// SPDX-License-Identifier: Apache-2.0

package method

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// EKSKept is the file with gpuadm's facts about the cluster and the machine. A converged node reads
// it, and asks no service. It is in kubelet's folder, so that an operator who clears that removes
// it too.
const EKSKept = "/var/lib/kubelet/gpuadm-eks.json"

// ECRConfig is where EKS's images have the configuration of kubelet's plugin that logs in to ECR,
// beside the plugin.
const ECRConfig = "/etc/eks/image-credential-provider/config.json"

// EKSOwn says whether the join sets up kubelet itself: then stage node, which adds labels and
// taints to the files of another owner's kubelet, has nothing to do.
func EKSOwn(s spec.Spec, f facts.Facts) bool {
	return Of(s, f) == "eks" && f.Cloud.Managed == "" && f.Cloud.Name == "aws" && !EKSOthers(f)
}

// EKSOthers says whether another tool has already made the machine a node: then that tool owns
// kubelet's files.
func EKSOthers(f facts.Facts) bool {
	k := f.Kubelet
	if k.Joined && k.Kubeconfig != "" && k.Kubeconfig != kubelet.Kubeconfig {
		return true // k3s and many others have their own places
	}
	found, ok := f.Files[kubelet.Kubeconfig]
	return ok && !bytes.HasPrefix(found, []byte(kubelet.Written)) && !SetUpByGpuadm(f)
}

// EKSRef returns the cluster about which facts are needed; nil if the machine does not join EKS, or
// if EKS's own tools join it.
func EKSRef(s spec.Spec) *instance.ClusterRef {
	if s.Join.Method != "eks" && s.Join.Method != "auto" {
		return nil
	}
	return &instance.ClusterRef{
		Name:     s.Join.Cluster,
		Region:   s.Join.Region,
		Via:      Via(s),
		Kept:     EKSKept,
		NodeName: s.Join.NodeName,
		Stated:   s.Join.Server != "" && s.Join.CAFile != "" && s.Join.ServiceCIDR != "",
	}
}

// eksName returns the node's future name, if it is known.
func eksName(s spec.Spec, f facts.Facts) string {
	if f.Cluster == nil || !EKSOwn(s, f) {
		return ""
	}
	return f.Cluster.PrivateDNS
}

// On EKS's images nodeadm makes the machine a node. At each boot nodeadm-config.service reads the
// user data, before cloud-init, and notes what it resolved; nodeadm-run.service, after cloud-init,
// reads that together with the files of a folder, writes the files of kubelet and containerd, and
// starts both. So gpuadm writes a file in that folder, and makes nodeadm-run wait for gpuadm.
// Source: https://github.com/awslabs/amazon-eks-ami,
// templates/al2023/runtime/rootfs/etc/systemd/system, nodeadm/cmd/nodeadm/init.
const (
	NodeadmDropIn   = "/etc/eks/nodeadm.d/50-gpuadm.yaml"
	NodeadmResolved = "/run/eks/nodeadm/config.json"
	NodeadmRun      = "nodeadm-run.service"
	NodeadmUnit     = "/etc/systemd/system/" + NodeadmRun
	NodeadmKind     = "kind: NodeConfig"
	NodeadmAPI      = "node.eks.aws/v1alpha1"
)

type nodeadmSpec struct {
	APIVersion string `json:"apiVersion"`
	Spec       struct{ Kubelet *NodeadmKubelet }
}

// NodeadmKubelet has the parts of a NodeConfig's kubelet that gpuadm reads.
type NodeadmKubelet struct {
	Flags  []string
	Config struct {
		RegisterWithTaints []struct{ Key, Value, Effect string }
	}
}

// NodeadmReads reads the NodeConfig that nodeadm has resolved from the user data and, after
// nodeadm-run has run, from gpuadm's file. There is none yet in an image, or too early in the boot: the
// result is empty. A NodeConfig of a version that gpuadm does not know may have its taints in another place, and
// is an error.
//
// nodeadm keeps its internal version, which Kubernetes' libraries write without an apiVersion, and
// always with a kubelet. Sources: awslabs/amazon-eks-ami, nodeadm/internal/api/bridge/encode.go and
// types.go; kubernetes/apimachinery, pkg/runtime/scheme.go (setTargetKind).
func NodeadmReads(data []byte) (k NodeadmKubelet, err error) {
	if len(bytes.Trim(data, " \t\r\n\x00")) == 0 {
		return k, nil
	}

	var n nodeadmSpec
	if err := json.Unmarshal(data, &n); err != nil {
		return k, nodeadmUnread("it is not what nodeadm writes: "+trouble.OneLine(err.Error()),
			"nodeadm init, or a reboot, which rewrites it")
	}
	switch {
	case n.APIVersion != "" && n.APIVersion != NodeadmAPI:
		return k, nodeadmUnread(fmt.Sprintf("its apiVersion is %q, and gpuadm knows %s", n.APIVersion, NodeadmAPI), newerGpuadm)
	case n.Spec.Kubelet == nil:
		return k, nodeadmUnread("it has no spec.kubelet, which each NodeConfig of "+NodeadmAPI+" has", newerGpuadm)
	}
	return *n.Spec.Kubelet, nil
}

const newerGpuadm = "use a gpuadm that is newer than this image's nodeadm"

// nodeadmUnread says that gpuadm cannot read what nodeadm has resolved.
func nodeadmUnread(why, try string) error {
	return &trouble.Error{
		What:    "cannot read " + NodeadmResolved + ": " + why,
		Because: []string{"the taints of the user data are in there, and gpuadm's list in their place would remove them"},
		Try: []string{
			try,
			"or give labels and taints in the NodeConfig of the user data, and write method = \"none\" in [join]",
		},
	}
}
