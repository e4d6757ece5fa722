// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// WholeGPU is the resource by which pods ask for a GPU, and with strategy single for a partition.
const WholeGPU = "nvidia.com/gpu"

// PartitionResource is the resource by which pods ask for a partition with strategy mixed. A
// resource's name may have no +.
// Source: https://github.com/NVIDIA/go-nvlib, pkg/nvlib/device/mig_profile.go; internal/rm of
// https://github.com/NVIDIA/k8s-device-plugin.
func PartitionResource(kind string) string {
	return "nvidia.com/mig-" + strings.ReplaceAll(kind, "+", ".")
}

// Resources returns what the device plugin offers of these GPUs, by the name of the resource, if it
// has the spec's configuration: with strategy none partitions do not count; single offers them all
// under the GPUs' own name; mixed offers each kind under its own name, and whole GPUs too.
// Source: https://github.com/NVIDIA/k8s-device-plugin, internal/rm and README; TestLabKubePlugin
// runs the plugin.
func (s Spec) Resources(gpus []Offers) (map[string]int, error) {
	strategy := s.StrategyFor(gpus)
	if fault := s.notByMPS(gpus); fault != nil && strategy != "none" {
		return nil, fault
	}
	if fault := s.Single(gpus); fault != nil && strategy == "single" {
		return nil, fault
	}

	counts := map[string]int{}
	for _, gpu := range gpus {
		switch {
		case strategy == "none", !gpu.MIG:
			counts[WholeGPU]++
		case strategy == "single":
			counts[WholeGPU] += len(gpu.Kinds)
		default:
			for _, kind := range gpu.Kinds {
				counts[PartitionResource(kind)]++
			}
		}
	}

	for name := range counts {
		counts[name] *= s.Sharing.Replicas()
	}
	return counts, nil
}

// notByMPS says why the device plugin, with a strategy that offers partitions, does not share these
// GPUs by MPS; nil if it does. Another program may have partitioned them.
// Source: NVIDIA/k8s-device-plugin v0.19.0, internal/plugin/mps.go (getMPSOptions) and
// cmd/nvidia-device-plugin/main.go (validateFlags); its pulls 537 and 713.
func (s Spec) notByMPS(gpus []Offers) *trouble.Error {
	i := slices.IndexFunc(gpus, func(o Offers) bool { return o.MIG })
	if s.Sharing.MPS == 0 || i < 0 {
		return nil
	}
	return &trouble.Error{
		What:    "cannot share the GPUs by MPS: " + gpus[i].GPU + " has MIG",
		Because: []string{"the device plugin says: sharing using MPS is not supported for MIG devices"},
		Try:     []string{"take mps out of [sharing], or switch MIG off: enabled = false in [[mig.gpu]]"},
		Keys:    []string{"sharing.mps"},
	}
}

// ResourceTexts returns resources in the order of their names: "14 nvidia.com/gpu".
func ResourceTexts(counts map[string]int) (texts []string) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		texts = append(texts, fmt.Sprintf("%d %s", counts[name], name))
	}
	return texts
}
