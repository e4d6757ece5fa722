// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"bytes"
	"fmt"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Notes say what EKS's own tools do, where they are on the machine.
func Notes(s spec.Spec, f facts.Facts) []string {
	if f.Cloud.Managed == "" {
		return podsNote(s, f)
	}
	labels, taints, err := node.Registration(s, f)
	if err != nil {
		return nil
	}
	if f.Cloud.Managed == "eks-hybrid" {
		return hybridNotes(f, kubeletFlagsSay(labels, taints))
	}

	const joins = "nodeadm joins this machine (%s) and rewrites kubelet's and containerd's files at each boot; gpuadm tells it by %s"
	notes := []string{fmt.Sprintf(joins, f.Cloud.ManagedWhy, nodeadm().Settings)}
	if f.Files[node.BootUnit] == nil {
		const notHeld = "gpuadm.service is not installed, so nothing holds nodeadm back until the GPUs are ready: "
		notes = append(notes, notHeld+trouble.Command("apply --install"))
	}
	written := bytes.Contains(f.Files[nodeadm().Settings], []byte("kind: "+instance.NodeConfigKind))
	if f.Kubelet.Joined && !written {
		notes = append(notes, "the node has joined already: nodeadm reads its settings at its next run, at the next boot")
	}
	return notes
}

// podsNote warns if the number of pods is a guess.
func podsNote(s spec.Spec, f facts.Facts) []string {
	if !method.SetsUpKubelet(s, f) || f.Cluster == nil || f.Instance == nil {
		return nil
	}
	stated := bytes.Contains(f.Files[s.Join.KubeletConfig], []byte("maxPods"))
	if stated || f.Cluster.ENIs > 0 {
		return nil
	}

	const text = "kubelet takes %d pods at most, since no source says how many addresses a %s has: the instance's role may lack ec2:DescribeInstanceTypes; maxPods in the file that kubelet_config in [join] names says how many"
	return []string{fmt.Sprintf(text, maxPods(*f.Cluster), f.Instance.Type)}
}
