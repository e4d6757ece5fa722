// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// This file checks [mig] with the sections that depend on it.

func (d *decoder) mig(m MIG) {
	if len(m.Stop) > 0 && !m.Asked() && d.passed("mig.stop", "mig.layout", "mig.file", "mig.gpu") {
		d.refuse("mig.stop", "write [[mig.gpu]] tables, or take stop out",
			"[mig] asks for no partitions, so gpuadm would never stop these units")
	}
	tablesPassed := d.passed("mig.layout", "mig.file", "mig.gpu")
	if m.FollowLabel && tablesPassed && d.passed("mig.follow_label") {
		onlyFile := m.File != "" && m.Layout == "" && len(m.GPU) == 0
		if !onlyFile {
			d.refuse("mig.follow_label",
				`write file = "/etc/gpuadm/mig.yaml", and neither layout nor [[mig.gpu]]`,
				"follow_label needs file, and excludes layout and [[mig.gpu]]")
			return
		}
	}

	if !tablesPassed || m.Layout == "" {
		return
	}

	if len(m.GPU) > 0 {
		fix := "keep one of the two"
		if d.places["mig.layout"].src != d.places["mig.gpu"].src {
			fix = `keep one of the two; layout = "" or gpu = [] in [mig] takes away what an earlier file says`
		}
		d.refuse("mig.layout", fix, "[mig] has a layout and [[mig.gpu]] tables")
		return
	}

	if m.File == "" {
		d.refuse("mig.layout",
			`write file = "/etc/gpuadm/mig.yaml", or [[mig.gpu]] tables in place of the layout`,
			"no file says what the layout %s is", show(m.Layout))
	}
}

// migGPU checks one [[mig.gpu]] alone.
func (d *decoder) migGPU(v *value) {
	gpu := &d.spec.MIG.GPU[len(d.spec.MIG.GPU)-1]
	hasPartitions := len(gpu.Layout) > 0 || len(gpu.Placements) > 0
	if !gpu.Enabled && hasPartitions {
		d.src.addf(v.find("enabled").key,
			"write enabled = true, or take the layout out",
			"without MIG there are no partitions")
		return
	}

	if len(gpu.Placements) == 0 {
		return
	}

	at := v.find("placements").key
	placed := map[string]int{}
	for i, placement := range gpu.Placements {
		if slices.Contains(gpu.Placements[:i], placement) {
			d.src.addf(at,
				"give each partition a start of its own",
				"two of the placements are the same: %s at %d", placement.Profile, placement.Start)
			return
		}

		placed[placement.Profile]++
	}

	if len(gpu.Layout) > 0 && !maps.Equal(gpu.Layout, placed) {
		d.src.addf(at,
			"give every partition of the layout its place, or leave the layout or the placements out",
			"the placements are not those of the layout")
	}
}

// mps refuses MPS on GPUs with MIG and with strategy = "mixed", like the device plugin. Sources:
// "With CUDA MPS" in its README, validateFlags in cmd/nvidia-device-plugin/main.go;
// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html.
func (d *decoder) mps(s Spec) {
	if s.Sharing.MPS == 0 || s.Sharing.TimeSlicing > 0 {
		return
	}
	sharingPassed := d.passed("sharing.mps", "sharing.time_slicing", "sharing.strategy")
	if !sharingPassed || !d.passed("mig.layout", "mig.file", "mig.gpu") {
		return
	}

	if s.MIG.mayPartition() || s.Strategy() == "mixed" {
		d.refuse("sharing.mps",
			"take mps out, or MIG",
			"the device plugin does not share GPUs with MIG by MPS")
	}
}

// Strategy returns none, single or mixed: how the device plugin has to offer the GPUs.
func (s Spec) Strategy() string {
	stated := s.Sharing.Strategy
	if stated == "auto" || stated == "" {
		return s.MIG.strategy()
	}
	return stated
}

// StrategyFor is Strategy on a machine with these GPUs. Where the spec leaves the strategy
// open, and GPUs that its tables do not partition, such as a T4, leave single nothing to offer,
// it is mixed.
func (s Spec) StrategyFor(gpus []Offers) string {
	isOpen := s.Sharing.Strategy == "auto" || s.Sharing.Strategy == ""
	if isOpen && s.Single(gpus) != nil {
		return "mixed"
	}
	return s.Strategy()
}

// strategy returns how the device plugin has to offer what the section makes, so that pods can ask
// for it. With single, partitions have the GPUs' own name, which takes one kind on all GPUs; what a
// file in mig-parted's form or a table for some of the GPUs makes may be of several kinds.
// Source: https://github.com/NVIDIA/k8s-device-plugin, README ("migStrategy") and
// internal/rm/device_map.go.
func (m MIG) strategy() string {
	if !m.mayPartition() {
		return "none"
	}

	kind := ""
	for _, gpu := range m.GPU {
		kinds := gpu.kinds()
		coversAll := gpu.Enabled && gpu.Devices.All && len(gpu.Match) == 0
		if !coversAll || len(kinds) == 0 {
			return "mixed"
		}
		for _, k := range kinds {
			if kind == "" {
				kind = k
			}
			if k != kind {
				return "mixed"
			}
		}
	}

	if kind == "" {
		return "mixed"
	}
	return "single"
}

// Partitions reports whether the spec asks for MIG partitions.
func (s Spec) Partitions() bool { return s.MIG.mayPartition() }

// LeavesWhole reports whether the tables of [mig] partition some of a machine's GPUs and leave
// others whole; count is the number of its GPUs. It is false where that is not known here: which
// GPUs a table means by their names, and what a file in mig-parted's form does.
func (s Spec) LeavesWhole(count int) bool {
	all := false
	byName := false
	some := map[int]bool{}
	for _, gpu := range s.MIG.GPU {
		coversAll := gpu.Devices.All && len(gpu.Match) == 0
		switch {
		case coversAll:
			all = gpu.Enabled
			clear(some)
		case !gpu.Enabled:
			all = false
		case len(gpu.Match) == 0:
			for _, index := range gpu.Devices.Index {
				some[index] = true
			}
		default:
			byName = true
		}
	}

	return !all && !byName && len(some) > 0 && len(some) < count
}

// mayPartition reports whether a layout or a table enables MIG.
func (m MIG) mayPartition() bool {
	if m.Layout != "" {
		return true
	}
	if len(m.GPU) == 0 {
		return m.File != ""
	}
	return slices.ContainsFunc(m.GPU, func(gpu MIGGPU) bool { return gpu.Enabled })
}

// single checks the tables for the same GPUs together: tables for other models may be for other
// machines.
func (d *decoder) single(s Spec) {
	if !d.passed("sharing.strategy", "mig.gpu") {
		return
	}

	for i, last := range s.MIG.GPU {
		var offers []Offers
		for j, gpu := range s.MIG.GPU[:i+1] {
			if slices.Equal(gpu.Match, last.Match) {
				offers = append(offers, Offers{
					GPU:   fmt.Sprintf("[[mig.gpu]] %d", j+1),
					MIG:   gpu.Enabled,
					Kinds: gpu.kinds(),
				})
			}
		}

		if fault := s.Single(offers); fault != nil {
			what := strings.TrimPrefix(fault.What, "cannot offer the GPUs: ")
			d.refuse("sharing.strategy", strings.Join(fault.Try, ", or "), "%s", what)
			return
		}
	}
}

// kinds returns the profiles of a table.
func (g MIGGPU) kinds() []string {
	profiles := slices.Sorted(maps.Keys(g.Layout))
	for _, placement := range g.Placements {
		profiles = append(profiles, placement.Profile)
	}
	return profiles
}

// indices checks the indices of GPUs, which count from 0.
func (d *decoder) indices(s Spec) {
	count := s.Driver.GPUCount
	if count == 0 || !d.passed("driver.gpu_count", "mig.gpu") {
		return
	}

	for _, gpu := range s.MIG.GPU {
		if len(gpu.Devices.Index) == 0 {
			continue
		}
		highest := slices.Max(gpu.Devices.Index)
		if highest >= count {
			d.refuse("driver.gpu_count",
				"write devices from 0 to "+strconv.Itoa(count-1)+", or another gpu_count",
				"[[mig.gpu]] names GPU %d, and with gpu_count = %d there is none", highest, count)
			return
		}
	}
}

// migLabel names the layout for NVIDIA's MIG manager, or for gpuadm in its place.
const migLabel = "nvidia.com/mig.config"

// follows refuses the label in [node]: gpuadm would follow a label that it sets itself.
func (d *decoder) follows(s Spec) {
	key := "node.labels." + migLabel
	_, set := s.Node.Labels[migLabel]
	if !set || !s.MIG.FollowLabel || !d.passed("mig.follow_label", key) {
		return
	}
	d.refuse(key,
		"take the label out, or write layout in place of follow_label in [mig]",
		"follow_label has gpuadm follow the label %s, and [node] sets it", migLabel)
}
