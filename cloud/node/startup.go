// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// readinessDomain is the domain of taints that the node readiness controller adds and removes
// according to conditions of the Node, by rules that the cluster's owner declares:
// https://github.com/kubernetes-sigs/node-readiness-controller.
const readinessDomain = "readiness.k8s.io/"

// karpenterTaint is the startup taint for nodes that Karpenter makes. Karpenter makes no second
// node while a node starts with a taint that the NodePool's startupTaints name. From 1.13 on it
// knows taints of this domain without configuration; but a node does not show Karpenter's version,
// so gpuadm adds the taint only if startupTaints name it. Older versions know, without
// configuration, only other owners' keys.
// Source: kubernetes-sigs/karpenter at 22664681, pkg/scheduling/taints.go, KnownEphemeralTaints and
// KnownEphemeralTaintKeyPrefixes, which pull 3025 added; and
// https://karpenter.sh/docs/concepts/nodepools/, "spec.template.spec.startupTaints".
func karpenterTaint() spec.Taint {
	return spec.Taint{Key: readinessDomain + "gpu", Value: "pending", Effect: "NoSchedule"}
}

// autoscalerTaint is the startup taint for all other nodes. cluster-autoscaler counts a node with a
// taint of this domain as soon ready, without any flags; without an autoscaler it is an ordinary
// taint.
// Source: https://github.com/kubernetes/autoscaler, cluster-autoscaler/FAQ.md, "startup taints".
func autoscalerTaint() spec.Taint {
	return spec.Taint{Key: "startup-taint.cluster-autoscaler.kubernetes.io/gpu", Value: "pending", Effect: "NoSchedule"}
}

// startupTaint returns the taint that keeps pods off the node from its first registration until the
// GPUs are ready: whether there is one, and why or why not.
//
// A kubelet may register its node with any taint whose key and value are well formed, but never
// change or remove a taint afterwards (kubernetes, plugin/pkg/admission/noderestriction: "not
// allowed to modify taints"; validateNodeTaints in pkg/apis/core/validation). So there is no such
// taint unless gpuadm sees a client that can remove it.
func startupTaint(s spec.Spec, f facts.Facts) (t spec.Taint, on bool, why string, err error) {
	switch wanted := s.Node.StartupTaint; wanted {
	case "none":
		return spec.Taint{}, false, "startup_taint is none", nil
	case "auto", "":
	default:
		return statedTaint(s, f, wanted)
	}
	if gated(s, f) {
		if s.Join.Gate != "open" {
			return spec.Taint{}, false, "kubelet does not start before the GPUs are ready", nil
		}
		why = "kubelet starts even if the GPUs are not ready: gate is open; "
	}
	by := clears(s, f)
	if by == "" {
		return spec.Taint{}, false, why + "no account here may take a startup taint off: [node] kubeconfig is not set", nil
	}
	if sign := karpenter(f); sign != "" {
		taint := karpenterTaint()
		if !named(f, taint) {
			return spec.Taint{}, false, why + sign + ": Karpenter before 1.13 would make a second node for a taint that its NodePool does not name; name " +
				taint.String() + " in startupTaints, or with 1.13 or newer write it in startup_taint", nil
		}
		return taint, true, why + by + " takes it off; " + sign + ", and the NodePool's startupTaints name it", nil
	}
	return autoscalerTaint(), true, why + by + " takes it off", nil
}

// statedTaint returns the startup taint that the spec states, which applies whether kubelet is held
// back or not.
func statedTaint(s spec.Spec, f facts.Facts, wanted string) (t spec.Taint, on bool, why string, err error) {
	t = parsedTaint(wanted)
	if owner := ownerOf(t.Key); owner != "" {
		return spec.Taint{}, false, "", &trouble.Error{
			What:    "cannot use the startup taint " + t.String(),
			Because: []string{"it is " + owner + "'s"},
			Try:     []string{"name a taint of your own in startup_taint, or write auto"}, Err: foreignKey,
		}
	}
	by := clears(s, f)
	if strings.HasPrefix(t.Key, readinessDomain) && by == "" {
		by = "the node readiness controller" // a taint of its domain has a rule there
	}
	if by == "" {
		return spec.Taint{}, false, "", &trouble.Error{
			What: "cannot put on the startup taint " + t.String() + ": no account here may take it off again",
			Because: []string{
				"a kubelet may not take taints off its own node (NodeRestriction)",
				"[node] kubeconfig names no other identity, and gpuadm does not run as a DaemonSet",
			},
			Try: []string{
				"set kubeconfig in [node] to that of a ServiceAccount that may patch this node",
				"or name a taint of " + readinessDomain + " and let the node readiness controller take it off",
				"or write startup_taint = \"none\"",
			}, Err: noAccount,
		}
	}
	return t, true, by + " takes it off", nil
}

// parsedTaint reads a taint that the spec has validated: key=value:Effect or key:Effect.
func parsedTaint(text string) spec.Taint {
	rest, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(rest, "=")
	return spec.Taint{Key: key, Value: value, Effect: effect}
}

// failedTaint replaces the startup taint if gpuadm could not make the GPUs ready:
// cluster-autoscaler then counts the node as unusable and may add another, and the pool's template
// does not change. A startup taint that stays for ever would stop cluster-autoscaler for the whole
// cluster. Source: cluster-autoscaler/FAQ.md, "status taints".
//
// Karpenter has no such taint. It replaces a node because of conditions that its cloud provider
// lists as reasons for repair (pkg/cloudprovider/types.go, RepairPolicies), and a node with its
// startup taint is not initialised: pods stay off, and the condition says why. So there is nothing
// to swap.
func failedTaint(s spec.Spec, f facts.Facts) (spec.Taint, bool) {
	_, on, _, err := startupTaint(s, f)
	if err != nil || !on || clears(s, f) == "" || karpenter(f) != "" {
		return spec.Taint{}, false
	}
	return failureTaint(), true
}

func failureTaint() spec.Taint {
	return spec.Taint{Key: "status-taint.cluster-autoscaler.kubernetes.io/gpu", Value: "failed", Effect: "NoSchedule"}
}

// formerTaints returns the taints that an earlier spec, or another kind of gate, may have left on
// the node: no other client removes them. Their values show that they are gpuadm's.
func formerTaints(f facts.Facts) []spec.Taint {
	if karpenter(f) != "" {
		return []spec.Taint{failureTaint(), karpenterTaint(), autoscalerTaint()}
	}
	return []spec.Taint{failureTaint(), autoscalerTaint()}
}

// StartupNeeds returns the additional facts for the choice of the startup taint.
func StartupNeeds() facts.Needs {
	files := []string{PodKubeconfig, BootUnit, method.NodeadmResolved}
	for _, unit := range facts.KubeletUnits() {
		files = append(files, GateOf(unit))
	}
	return facts.Needs{Files: files}
}

// BootUnit is the unit that runs apply at each boot.
const BootUnit = "/etc/systemd/system/gpuadm.service"

// GateOf returns the drop-in that makes a unit wait for gpuadm.service.
func GateOf(unit string) string { return "/etc/systemd/system/" + unit + ".d/50-gpuadm.conf" }

// gated says whether kubelet is held back until the GPUs are ready: by a drop-in of its unit or, on
// EKS's images, since nodeadm-run starts it and stage join orders nodeadm-run after gpuadm.service.
// For EKS gated reads the spec, not the drop-in, which does not exist yet at the first call.
func gated(s spec.Spec, f facts.Facts) bool {
	byNodeadm := f.Cloud.Nodeadm && (s.Join.Method == "eks" || s.Join.Method == "auto")
	return f.Kubelet.Unit != "" && f.Files[GateOf(f.Kubelet.Unit)] != nil || byNodeadm && f.Files[BootUnit] != nil
}

// clears names the account here that may change the node's taints, "" if there is none. The facts
// have the pod's file only if the stage asked for it.
func clears(s spec.Spec, f facts.Facts) string {
	switch {
	case s.Node.Kubeconfig != "":
		return "the identity of " + s.Node.Kubeconfig
	case f.Files[PodKubeconfig] != nil:
		return "the DaemonSet's ServiceAccount"
	}
	return ""
}

// named says whether kubelet registers with a taint from Karpenter, which passes startupTaints to
// kubelet.
// Source: aws/karpenter-provider-aws, pkg/providers/amifamily/resolver.go, which appends them to
// the taints, and bootstrap/nodeadm.go, which makes both registerWithTaints.
func named(f facts.Facts, t spec.Taint) bool {
	said, err := method.NodeadmReads(f.Files[method.NodeadmResolved])
	return slices.ContainsFunc(f.Kubelet.Taints, func(o facts.Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }) ||
		err == nil && slices.ContainsFunc(said.Spec.Kubelet.Config.RegisterWithTaints, func(o struct{ Key, Value, Effect string }) bool { return o.Key == t.Key })
}

// karpenter names the sign that Karpenter made this node, "" if there is none. Each of its nodes
// registers with its taint; kubelet's labels name its NodePool, and so do the instance's tags if
// the cloud shows them. In the first boot of EKS's images kubelet's files do not exist yet, and
// gpuadm reads the user data, as nodeadm has resolved it.
// Source: https://karpenter.sh/docs/concepts/nodeclasses/, "spec.userData" and "spec.tags".
func karpenter(f facts.Facts) string {
	const unregistered, pool = "karpenter.sh/unregistered", "karpenter.sh/nodepool"
	for _, t := range f.Kubelet.Taints {
		if t.Key == unregistered {
			return "kubelet registers with the taint " + unregistered
		}
	}
	if f.Kubelet.Labels[pool] != "" {
		return "kubelet registers with the label " + pool
	}
	if said, err := method.NodeadmReads(f.Files[method.NodeadmResolved]); err == nil { // the stage that writes nodeadm's settings reports an error
		for _, t := range said.Spec.Kubelet.Config.RegisterWithTaints {
			if t.Key == unregistered {
				return "the user data has kubelet register with the taint " + unregistered
			}
		}
		for _, flag := range said.Spec.Kubelet.Flags {
			labels, ok := strings.CutPrefix(flag, "--node-labels=")
			if ok && strings.Contains(","+labels, ","+pool+"=") {
				return "the user data has kubelet register with the label " + pool
			}
		}
	}
	if f.Instance != nil && f.Instance.Tags[pool] != "" {
		return "the instance has the tag " + pool
	}
	return ""
}

// Holds says what keeps pods off the machine at its next boot until the GPUs are ready; "" if
// gpuadm does not manage the node, or if it has no GPUs. A taint affects only new pods: pods that
// are already bound to the node restart with kubelet, as after any reboot.
func Holds(ctx context.Context, v host.View, s spec.Spec) (string, error) {
	if !TellsCluster(s) || !v.Live() {
		return "", nil
	}
	f, err := facts.Gather(ctx, v, StartupNeeds())
	if err != nil || !hasGPU(f) {
		return "", err
	}
	return holds(s, f), nil
}

func holds(s spec.Spec, f facts.Facts) string {
	startup, on, why, err := startupTaint(s, f)
	held := gated(s, f) && s.Join.Gate != "open"
	switch {
	case err != nil:
		return "" // the plan has it
	case held:
		return "at a boot kubelet waits until the GPUs are ready, and pods that are bound to the node wait with it"
	case on:
		return fmt.Sprintf("at a boot the taint %s keeps new pods away until the GPUs are ready; those that are bound to the node already come back with kubelet: drain it first, or have kubelet wait, by "+trouble.Command("apply --install"), startup)
	}
	return "at a boot nothing keeps pods away before the GPUs are ready: " + why
}
