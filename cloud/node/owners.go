// SPDX-License-Identifier: Apache-2.0

package node

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

//go:embed owners.tsv
var ownerRows string

// ownerOf names the owner of a label or taint key that gpuadm must never change; "" if the key has
// no owner. Two writers of one key overwrite each other for ever, or, as with the marks of spot
// nodes, mislead a scheduler.
func ownerOf(key string) (owner string) {
	switch key {
	case "node.kubernetes.io/exclude-from-external-load-balancers", "node.kubernetes.io/exclude-disruption":
		return "" // for operators to set
	}

	owner, free := platform.LabelOwner(key)
	if owner != "" || free {
		return owner
	}
	for row := range strings.Lines(ownerRows) {
		pattern, owner, ok := strings.Cut(strings.TrimSpace(row), "\t")
		if ok && platform.Covers(pattern, key) {
			return owner
		}
	}

	return ""
}

// A Foreign is a label or taint of [node] that another owner sets, or gpuadm itself.
type Foreign struct {
	Key  string // as the spec names it: node.labels.KEY, node.taints, node.startup_taint
	What string // label KEY, taint KEY=VALUE:EFFECT
	Who  string // the owner
}

// Foreigns lists the labels and taints of a spec that are Foreign.
func Foreigns(s spec.Spec) (all []Foreign) {
	for _, key := range slices.Sorted(maps.Keys(s.Node.Labels)) {
		owner := ownerOf(key)
		if owner == "" && s.Node.GPULabels && isDiscovered(key) {
			owner = "GPU Feature Discovery"
		}
		all = append(all, Foreign{"node.labels." + key, "label " + key, owner})
	}

	for _, t := range s.Node.Taints {
		owner := ownerOf(t.Key)
		if isOwnTaint(s, t) {
			owner = gpuadmItself
		}
		all = append(all, Foreign{"node.taints", "taint " + t.String(), owner})
	}

	if t := parsedTaint(s.Node.StartupTaint); t.Effect != "" {
		all = append(all, Foreign{"node.startup_taint", "startup taint " + t.String(), ownerOf(t.Key)})
	}
	return slices.DeleteFunc(all, func(f Foreign) bool { return f.Who == "" })
}

// gpuadmItself is the owner of the taints by which gpuadm keeps pods off.
const gpuadmItself = "gpuadm"

// isOwnTaint reports whether gpuadm itself puts a taint on until the GPUs are ready, and takes it
// off then. With another startup_taint, or none, gpuadm leaves these taints to others.
func isOwnTaint(s spec.Spec, t spec.Taint) bool {
	isOpen := s.Node.StartupTaint == "auto" || s.Node.StartupTaint == ""
	return isOpen && hasTaint([]spec.Taint{autoscalerTaint(), readinessTaint(), failureTaint()}, t)
}

// isDiscovered reports whether GPU Feature Discovery writes a label. With gpu_labels gpuadm writes
// the same labels, and would overwrite a value of node.toml for ever.
// Source: https://github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery/README.md
// ("Generated Labels") and internal/lm.
func isDiscovered(key string) bool {
	names := []string{
		"gpu.product", "gpu.family", "gpu.machine", "gpu.memory", "gpu.mode",
		"gpu.count", "gpu.replicas", "gpu.sharing-strategy", "gpu.clique",
		"mig.capable", "mig.strategy", "mps.capable",
	}
	groups := []string{"cuda.", "gpu.compute.", "vgpu.", "mig-"}

	name, isNVIDIA := strings.CutPrefix(key, "nvidia.com/")
	isInGroup := slices.ContainsFunc(groups, func(group string) bool {
		return strings.HasPrefix(name, group)
	})
	return isNVIDIA && (isInGroup || slices.Contains(names, name))
}

// Trouble refuses the label or taint.
func (f Foreign) Trouble() *trouble.Error {
	if f.Who == gpuadmItself {
		return &trouble.Error{
			What: fmt.Sprintf("cannot keep the %s on the node: gpuadm takes it off once the GPUs are ready", f.What),
			Try:  []string{"drop it from taints in [node], or give the lasting taint another key"},
			Err:  taintTwice,
		}
	}

	list, _, _ := strings.Cut(strings.TrimPrefix(f.Key, "node."), ".")
	return &trouble.Error{
		What: fmt.Sprintf("cannot set the %s: %s sets it", f.What, f.Who),
		Try:  []string{fmt.Sprintf("drop it from %s in [node], and set it where %s is configured", list, f.Who)},
		Err:  foreignKey,
	}
}

// refuseForeign refuses a spec that asks for labels or taints with another owner.
func refuseForeign(s spec.Spec) error {
	all := Foreigns(s)
	if len(all) == 0 {
		return nil
	}
	refused := all[0].Trouble()
	for _, f := range all[1:] {
		also := f.Trouble()
		refused.Because = append(refused.Because, also.What)
		refused.Try = append(refused.Try, also.Try...)
	}

	return refused
}
