// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// readinessTaint is the startup taint for nodes that Karpenter makes. Older versions of Karpenter
// need it in startupTaints of the NodePool, and a node does not show the version: so gpuadm adds it
// only if startupTaints name it.
func readinessTaint() spec.Taint {
	return spec.Taint{
		Key:    readinessDomain + "gpu",
		Value:  "pending",
		Effect: "NoSchedule",
	}
}

// startupTaintsName reports whether Karpenter has kubelet register with a taint: it passes
// startupTaints to kubelet. One with another effect is another taint: Karpenter compares both.
// Sources: aws/karpenter-provider-aws, pkg/providers/amifamily/resolver.go, which appends them to
// the taints, and bootstrap/nodeadm.go, which makes both registerWithTaints;
// kubernetes-sigs/karpenter, pkg/controllers/nodeclaim/lifecycle/initialization.go
// (StartupTaintsRemoved).
func startupTaintsName(f facts.Facts, t spec.Taint) (bool, error) {
	for _, found := range f.Kubelet.Taints {
		if sameTaint(spec.Taint(found), t) {
			return true, nil
		}
	}

	resolved, err := userDataKubelet(f)
	if err != nil {
		return false, err
	}
	for _, found := range resolved.Config.RegisterWithTaints {
		if sameTaint(spec.Taint(found), t) {
			return true, nil
		}
	}

	return false, nil
}

// whyNotNamed says why a node of a NodePool starts without a taint that the NodePool does not name.
func whyNotNamed(sign string) string {
	return sign + ": " + platform.UnnamedTaint(readinessTaint().String())
}

// nodePoolSign names the sign that Karpenter made this node, "" if there is none. Each of its
// nodes registers with its taint; kubelet's labels name its NodePool, and so do the instance's tags
// if the cloud shows them.
// Source: https://karpenter.sh/docs/concepts/nodeclasses/, "spec.userData" and "spec.tags".
func nodePoolSign(f facts.Facts) (sign string, err error) {
	for _, t := range f.Kubelet.Taints {
		if t.Key == platform.UnregisteredTaint {
			return "kubelet registers with the taint " + platform.UnregisteredTaint, nil
		}
	}

	if f.Kubelet.Labels[platform.NodePoolLabel] != "" {
		return "kubelet registers with the label " + platform.NodePoolLabel, nil
	}
	if f.Instance != nil && f.Instance.Tags[platform.NodePoolLabel] != "" {
		return "the instance has the tag " + platform.NodePoolLabel, nil
	}

	return userDataSign(f)
}

// userDataSign names Karpenter's sign in the user data, "" if there is none: in the first boot of
// EKS's images kubelet's files do not exist yet.
func userDataSign(f facts.Facts) (sign string, err error) {
	resolved, err := userDataKubelet(f)
	if err != nil {
		return "", err
	}

	const registers = "the user data has kubelet register with the "
	for _, t := range resolved.Config.RegisterWithTaints {
		if t.Key == platform.UnregisteredTaint {
			return registers + "taint " + platform.UnregisteredTaint, nil
		}
	}
	for _, flag := range resolved.Flags {
		labels, isLabels := strings.CutPrefix(flag, "--node-labels=")
		if isLabels && strings.Contains(","+labels, ","+platform.NodePoolLabel+"=") {
			return registers + "label " + platform.NodePoolLabel, nil
		}
	}

	return "", nil
}

// userDataKubelet returns kubelet's part of the user data, as the program that joins the machine
// has resolved it. A file that gpuadm cannot read may have Karpenter's signs, so the answer is then
// unknown.
func userDataKubelet(f facts.Facts) (instance.UserKubelet, error) {
	for _, file := range platform.Resolved() {
		if f.Files[file] == nil {
			continue
		}
		k, err := instance.ReadResolved(file, f.Files[file])
		if err != nil {
			return instance.UserKubelet{}, &trouble.Unknown{Err: err}
		}
		return k, nil
	}

	return instance.UserKubelet{}, nil
}
