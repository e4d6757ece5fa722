// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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

// ResourceTexts returns resources in the order of their names: "14 nvidia.com/gpu".
func ResourceTexts(counts map[string]int) (texts []string) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		texts = append(texts, fmt.Sprintf("%d %s", counts[name], name))
	}
	return texts
}
