// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import "fmt"

// ProfileName is the name of a GPU instance profile as nvidia-smi composes it, for drivers that have no names in NVML (before R525):
// the memory is the profile's share of the GPU's in eighths, of the GPU's size in whole GiB. Memory is the GPU's, in bytes.
func ProfileName(p Profile, memory uint64) string {
	attribute := map[int]string{ // NVML_GPU_INSTANCE_PROFILE_… of nvml.h
		7: "+me", 8: "+me", // 1_SLICE_REV1, 2_SLICE_REV1
		10: "+gfx", 11: "+gfx", 12: "+gfx", 17: "+gfx",
		13: "-me", 14: "-me",
		15: "+me.all", 16: "+me.all",
	}[p.Enum]
	gib := uint64(0)
	if memory > 0 {
		const whole = 1 << 30
		eighths := min((8*p.Memory+memory-1)/memory, 8)
		gib = (eighths*((memory+whole-1)/whole) + 4) / 8
	}
	return fmt.Sprintf("%dg.%dgb%s", p.Slices, gib, attribute)
}

// ComputeProfiles is what a GPU instance with this many compute slices offers by rule: NVML answers only once such an
// instance exists. Ids are NVML's enumeration, as in every dump of nvidia-smi mig -lcip so far; the whole instance comes last.
func ComputeProfiles(slices int) []ComputeProfile {
	var offered []ComputeProfile
	for enum, size := range []int{1, 2, 3, 4, 7} { // NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, …: nvml.h
		if size < slices && !(size == 3 && slices == 4) || size == slices {
			offered = append(offered, ComputeProfile{ID: enum, Enum: enum, Slices: size, Max: slices / size})
		}
	}
	return offered
}
