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

// On EKS's images nodeadm makes the machine a node. At each boot nodeadm-config.service reads the user data, before cloud-init,
// and notes what it resolved; nodeadm-run.service, after cloud-init, reads that again together with the files of a folder,
// writes the files of kubelet and containerd, and starts both. So we tell it by a file in the folder, and have it wait for us.
// Source: https://github.com/awslabs/amazon-eks-ami, templates/al2023/runtime/rootfs/etc/systemd/system, nodeadm/cmd/nodeadm/init.
const (
	NodeadmDropIn   = "/etc/eks/nodeadm.d/50-gpuadm.yaml"
	NodeadmResolved = "/run/eks/nodeadm/config.json"
	NodeadmRun      = "nodeadm-run.service"
	NodeadmUnit     = "/etc/systemd/system/" + NodeadmRun
	NodeadmKind     = "kind: NodeConfig"
	NodeadmAPI      = "node.eks.aws/v1alpha1"
)

// NodeadmSpec is what of a NodeConfig concerns us.
type NodeadmSpec struct {
	Spec struct {
		Containerd struct{ Config string }
		Kubelet    struct {
			Flags  []string
			Config struct {
				RegisterWithTaints []struct{ Key, Value, Effect string }
			}
		}
	}
}

// NodeadmReads reads what nodeadm has resolved from the user data, and from our file once nodeadm-run was at work.
func NodeadmReads(data []byte) (n NodeadmSpec, err error) {
	if len(bytes.Trim(data, " \t\r\n\x00")) == 0 {
		return n, nil // not yet: an image, or a boot that is too young
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return n, &trouble.Error{
			What:    fmt.Sprintf("cannot read %s: it is not what nodeadm writes: %s", NodeadmResolved, trouble.OneLine(err.Error())),
			Because: []string{"the taints of the user data are in there, and gpuadm's list in their place would remove them"},
			Try:     []string{"nodeadm init, or a reboot, which rewrites it"},
		}
	}
	return n, nil
}
