// SPDX-License-Identifier: Apache-2.0

// Package nodeadm has the files of nodeadm, the program of EKS that makes a machine a node, and
// reads what it has resolved.
package nodeadm

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// On EKS's images nodeadm makes the machine a node. At each boot nodeadm-config.service reads the
// user data, before cloud-init, and notes what it resolved; nodeadm-run.service, after cloud-init,
// reads that together with the files of a folder, writes the files of kubelet and containerd, and
// starts both. So gpuadm writes a file in that folder, and makes nodeadm-run wait for gpuadm.
// Source: https://github.com/awslabs/amazon-eks-ami,
// templates/al2023/runtime/rootfs/etc/systemd/system, nodeadm/cmd/nodeadm/init.
const (
	DropIn     = "/etc/eks/nodeadm.d/50-gpuadm.yaml"
	Resolved   = "/run/eks/nodeadm/config.json"
	RunUnit    = "nodeadm-run.service"
	UnitFile   = "/etc/systemd/system/" + RunUnit
	Kind       = "kind: NodeConfig"
	APIVersion = "node.eks.aws/v1alpha1"
)

// Files lists the files of nodeadm that a join reads.
func Files() []string { return []string{Resolved, DropIn, UnitFile} }

type nodeConfig struct {
	APIVersion string `json:"apiVersion"`
	Spec       struct{ Kubelet *Kubelet }
}

// Kubelet has the parts of a NodeConfig's kubelet that gpuadm reads.
type Kubelet struct {
	Flags  []string
	Config struct {
		RegisterWithTaints []struct{ Key, Value, Effect string }
	}
}

// Read reads the NodeConfig that nodeadm has resolved from the user data and, after nodeadm-run has
// run, from gpuadm's file. There is none yet in an image, or too early in the boot: the result is
// empty. A NodeConfig of a version that gpuadm does not know may have its taints in another place,
// and is an error.
//
// nodeadm keeps its internal version, which Kubernetes' libraries write without an apiVersion, and
// always with a kubelet. Sources: awslabs/amazon-eks-ami, nodeadm/internal/api/bridge/encode.go and
// types.go; kubernetes/apimachinery, pkg/runtime/scheme.go (setTargetKind).
func Read(data []byte) (k Kubelet, err error) {
	if len(bytes.Trim(data, " \t\r\n\x00")) == 0 {
		return k, nil
	}

	var n nodeConfig
	if err := json.Unmarshal(data, &n); err != nil {
		return k, unread("it is not what nodeadm writes: "+trouble.OneLine(err.Error()),
			"nodeadm init, or a reboot, which rewrites it")
	}
	switch {
	case n.APIVersion != "" && n.APIVersion != APIVersion:
		return k, unread(fmt.Sprintf("its apiVersion is %q, and gpuadm knows %s", n.APIVersion, APIVersion), newerGpuadm)
	case n.Spec.Kubelet == nil:
		return k, unread("it has no spec.kubelet, which each NodeConfig of "+APIVersion+" has", newerGpuadm)
	}

	return *n.Spec.Kubelet, nil
}

const newerGpuadm = "use a gpuadm that is newer than this image's nodeadm"

// unread says that gpuadm cannot read what nodeadm has resolved.
func unread(why, try string) error {
	return &trouble.Error{
		What:    "cannot read " + Resolved + ": " + why,
		Because: []string{"the taints of the user data are in there, and gpuadm's list in their place would remove them"},
		Try: []string{
			try,
			"or give labels and taints in the NodeConfig of the user data, and write method = \"none\" in [join]",
		},
	}
}
