// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// readinessDomain is the domain of taints that the node readiness controller adds and removes
// according to conditions of the Node, by rules that the cluster's owner declares:
// https://github.com/kubernetes-sigs/node-readiness-controller.
const readinessDomain = "readiness.k8s.io/"

// autoscalerTaint is the startup taint for nodes that Karpenter did not make. cluster-autoscaler
// counts a node with a taint of this domain as soon ready, without any flags; without an autoscaler
// it is an ordinary taint.
// Source: https://github.com/kubernetes/autoscaler, cluster-autoscaler/FAQ.md, "startup taints".
func autoscalerTaint() spec.Taint {
	return spec.Taint{
		Key:    "startup-taint.cluster-autoscaler.kubernetes.io/gpu",
		Value:  "pending",
		Effect: "NoSchedule",
	}
}

// startupTaint returns the taint that keeps pods off the node from its first registration until the
// GPUs are ready, and why there is that one, or none. The taint is empty if there is none.
//
// A kubelet may register its node with any taint whose key and value are well formed, but never
// change or remove a taint afterwards (kubernetes, plugin/pkg/admission/noderestriction: "not
// allowed to modify taints"; validateNodeTaints in pkg/apis/core/validation). So there is no such
// taint unless gpuadm sees a client that can remove it.
func startupTaint(s spec.Spec, f facts.Facts) (t spec.Taint, why string, err error) {
	switch s.Node.StartupTaint {
	case "none":
		return spec.Taint{}, "startup_taint is none", nil
	case "auto", "":
	default:
		return specTaint(s, f)
	}

	if gated(s, f) {
		if s.Join.Gate != "open" {
			return spec.Taint{}, "kubelet does not start before the GPUs are ready", nil
		}
		why = "kubelet starts even if the GPUs are not ready: gate is open; "
	}

	remover := cmp.Or(taintRemover(s, f), awaitedRemover(s, f))
	if remover == "" {
		why += "no account here may take a startup taint off: [node] kubeconfig is not set"
		return spec.Taint{}, why, nil
	}

	sign, err := nodePoolSign(f)
	if err != nil {
		return spec.Taint{}, "", err
	}
	if sign == "" {
		return autoscalerTaint(), why + remover + " takes it off", nil
	}

	isNamed, err := startupTaintsName(f, readinessTaint())
	if err != nil {
		return spec.Taint{}, "", err
	}
	if !isNamed {
		return spec.Taint{}, why + whyNotNamed(sign), nil
	}
	why += remover + " takes it off; " + sign + ", and the NodePool's startupTaints name it"
	return readinessTaint(), why, nil
}

// specTaint returns the startup taint that the spec sets, which applies whether kubelet is held
// back or not.
func specTaint(s spec.Spec, f facts.Facts) (t spec.Taint, why string, err error) {
	t = parsedTaint(s.Node.StartupTaint)
	if owner := ownerOf(t.Key); owner != "" {
		foreign := Foreign{"node.startup_taint", "startup taint " + t.String(), owner}
		return spec.Taint{}, "", foreign.Trouble()
	}

	remover := cmp.Or(taintRemover(s, f), awaitedRemover(s, f))
	if remover == "" && strings.HasPrefix(t.Key, readinessDomain) {
		remover = "the node readiness controller" // a taint of its domain has a rule there
	}
	if remover == "" {
		return spec.Taint{}, "", noRemoverFor(t)
	}
	return t, remover + " takes it off", nil
}

// noRemoverFor says that the startup taint would stay for ever.
func noRemoverFor(t spec.Taint) error {
	return &trouble.Error{
		What: "cannot put on the startup taint " + t.String() + ": no account here may take it off again",
		Because: []string{
			"a kubelet may not take taints off its own node (NodeRestriction)",
			"[node] kubeconfig names no other identity, and gpuadm does not run as a DaemonSet",
		},
		Try: []string{
			"set kubeconfig in [node] to that of a ServiceAccount that may patch this node",
			"or name a taint of " + readinessDomain + " and let the node readiness controller take it off",
			"or write startup_taint = \"none\"",
		},
		Err: noAccount,
	}
}

// parsedTaint reads a taint that the spec has validated: key=value:Effect or key:Effect.
func parsedTaint(text string) spec.Taint {
	rest, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(rest, "=")
	return spec.Taint{Key: key, Value: value, Effect: effect}
}

// taintRemover names the account here that may change the node's taints, "" if there is none. The
// facts have the pod's file only if the stage asked for it.
func taintRemover(s spec.Spec, f facts.Facts) string {
	switch {
	case s.Node.Kubeconfig != "":
		return "the identity of " + s.Node.Kubeconfig
	case f.Files[PodKubeconfig] != nil:
		return "the DaemonSet's ServiceAccount"
	}
	return ""
}

// awaitedRemover names the account that the cluster has not judged since the DaemonSet's pod
// started, if kubelet registers the node with a startup taint of gpuadm's: without an answer
// the taint stays in kubelet's flags, so that no pod comes before the GPUs to a node that
// registers now.
func awaitedRemover(s spec.Spec, f facts.Facts) string {
	if f.Files[PodUnsure] == nil {
		return ""
	}
	own := []spec.Taint{autoscalerTaint(), readinessTaint(), parsedTaint(s.Node.StartupTaint)}
	registers := slices.ContainsFunc(f.Kubelet.Taints, func(t facts.Taint) bool {
		return slices.Contains(own, spec.Taint{
			Key:    t.Key,
			Value:  t.Value,
			Effect: t.Effect,
		})
	})
	if !registers {
		return ""
	}
	return "the DaemonSet's ServiceAccount, about which the cluster does not answer,"
}

// StartupNeeds returns the additional facts for the choice of the startup taint.
func StartupNeeds() facts.Needs {
	files := append(platform.Resolved(), PodKubeconfig, PodUnsure, BootUnit)
	for _, unit := range facts.KubeletUnits() {
		files = append(files, GateOf(unit))
	}
	return facts.Needs{Files: files}
}

// failedTaint returns the taint that replaces the startup taint if gpuadm could not make the GPUs
// ready; an empty one if there is no startup taint, or if gpuadm may not replace it.
// cluster-autoscaler then counts the node as unusable and may add another, and the pool's template
// does not change. A startup taint that stays for ever would stop cluster-autoscaler for the whole
// cluster. Source: cluster-autoscaler/FAQ.md, "status taints".
//
// Karpenter has no such taint. It replaces a node because of conditions that its cloud provider
// lists as reasons for repair (pkg/cloudprovider/types.go, RepairPolicies), and a node with its
// startup taint is not initialised: pods stay off, and the condition says why. So there is nothing
// to replace.
func failedTaint(s spec.Spec, f facts.Facts) spec.Taint {
	startup, _, err := startupTaint(s, f)
	if err != nil || startup.Key == "" || taintRemover(s, f) == "" {
		return spec.Taint{}
	}
	sign, err := nodePoolSign(f)
	if err != nil || sign != "" {
		return spec.Taint{}
	}
	return failureTaint()
}

func failureTaint() spec.Taint {
	return spec.Taint{
		Key:    "status-taint.cluster-autoscaler.kubernetes.io/gpu",
		Value:  "failed",
		Effect: "NoSchedule",
	}
}

// formerTaints returns the taints that an earlier spec, or another kind of gate, may have left on
// the node: no other client removes them. Their values show that they are gpuadm's.
func formerTaints(f facts.Facts) ([]spec.Taint, error) {
	sign, err := nodePoolSign(f)
	if err != nil {
		return nil, err
	}
	former := []spec.Taint{failureTaint()}
	if sign != "" {
		former = append(former, readinessTaint())
	}
	return append(former, autoscalerTaint()), nil
}
