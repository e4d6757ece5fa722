// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/pci"
)

// PCI is one PCI function.
type PCI = pci.Function

// pci lists the NVIDIA functions on the bus, in bus order. Not nil: the bus was read.
func (g *gathering) pci() []PCI {
	found := []PCI{}
	all, err := pci.Functions(g.v)
	if err != nil {
		g.fail("list", pci.Bus, err)
	}
	for _, function := range all {
		g.rdma = g.rdma || readsGPUMemory(function)
		if function.Vendor == pci.Nvidia {
			function.Model = model(function.Device, function.Subsystem)
			found = append(found, function)
		}
	}

	return found
}

// readsGPUMemory says whether a function is a network card that reads and writes GPUs' memory.
//
// 15b3 is Mellanox, the vendor of NVIDIA's network cards. Amazon's EFA has the devices efa0 to
// efa3, and Amazon's other network cards ec20. Sources: pci.ids; EFA_DEV in
// drivers/infiniband/hw/efa/efa_main.c of the kernel's tree.
func readsGPUMemory(function PCI) bool {
	isEFA := function.Vendor == "1d0f" && strings.HasPrefix(function.Device, "efa")
	return strings.HasPrefix(function.Class, "02") && (function.Vendor == "15b3" || isEFA)
}
