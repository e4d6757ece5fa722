// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package method

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

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
