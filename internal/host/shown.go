// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"fmt"
)

// Shown lists the devices for each process that starts CUDA to test it, by UUID: all whole GPUs for
// one process, and one device of each GPU in MIG mode. Up to R525 a process that uses a MIG device
// can use no other device, so each MIG device gets a process of its own. A GPU in MIG mode without
// instances has no device for CUDA. Sources: MIG user guide, "Device Enumeration"; CUDA programming
// guide, "CUDA Environment Variables" (CUDA_VISIBLE_DEVICES).
func (d Driver) Shown() [][]string {
	whole := []string{}
	var partitions [][]string
	for _, g := range d.GPUs {
		switch {
		case g.Lost != "":
		case !g.Mode:
			whole = append(whole, g.UUID)
		default:
			if device := g.firstMIGDevice(); device != "" {
				partitions = append(partitions, []string{device})
			}
		}
	}

	if len(whole) > 0 || len(partitions) == 0 {
		return append([][]string{whole}, partitions...)
	}
	return partitions
}

// firstMIGDevice names the first MIG device of a GPU for CUDA, "" if it has none. Before R470 MIG
// devices had no UUIDs: the guide's section on CUDA_VISIBLE_DEVICES, and go-nvml's nvml.h.
func (g GPU) firstMIGDevice() string {
	for _, instance := range g.Instances {
		if len(instance.Compute) > 0 {
			first := instance.Compute[0]
			return cmp.Or(first.UUID, fmt.Sprintf("MIG-%s/%d/%d", g.UUID, instance.ID, first.ID))
		}
	}
	return ""
}
