// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// hybrid checks what would keep EKS's nodeadm for hybrid nodes from joining the machine. It leaves
// the rest to nodeadm, which turns swap off, and checks the network, the clock, the API server, the
// credentials and the node's name.
// Source: https://github.com/aws/eks-hybrid, internal/system/swap.go and internal/validation.
func hybrid(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !f.Live || f.Booting || f.Kubelet.Joined {
		return nil, nil
	}
	return nil, kubelet.CheckStart(map[string]any{"failSwapOn": false}, s, f)
}

// hybridNotes say what nodeadm for hybrid nodes does, and which kubelet flags it must be given.
func hybridNotes(f facts.Facts, flags string) []string {
	const joins = "nodeadm of EKS Hybrid Nodes joins this machine (%s): it gets the credentials, writes kubelet's and containerd's files and checks clock, network and rights; gpuadm does every stage but that"
	notes := []string{fmt.Sprintf(joins, f.Cloud.ManagedWhy)}
	if flags != "" {
		notes = append(notes, "give nodeadm's NodeConfig, in spec.kubelet.flags: "+flags)
	}
	return notes
}

// kubeletFlagsSay returns the flags with which another owner must start kubelet so that it
// registers as node.toml asks; "" for none.
func kubeletFlagsSay(labels map[string]string, taints []spec.Taint) string {
	var flags []string
	if len(labels) > 0 {
		flags = append(flags, "--node-labels="+strings.Join(kubelet.Pairs(labels), ","))
	}
	if len(taints) > 0 {
		flags = append(flags, "--register-with-taints="+strings.Join(kubelet.TaintTexts(taints), ","))
	}
	return strings.Join(flags, " ")
}
