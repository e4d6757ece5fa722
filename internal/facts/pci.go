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
	for _, p := range all {
		// 15b3 is Mellanox, as NVIDIA's network cards say; EFA's functions are Amazon's efa0 to
		// efa3, beside its plain ec20: pci.ids, and EFA_DEV in drivers/infiniband/hw/efa/efa_main.c
		// of the kernel's tree.
		g.rdma = g.rdma || strings.HasPrefix(p.Class, "02") && (p.Vendor == "15b3" || p.Vendor == "1d0f" && strings.HasPrefix(p.Device, "efa"))
		if p.Vendor == pci.Nvidia {
			p.Model = model(p.Device, p.Subsystem)
			found = append(found, p)
		}
	}
	return found
}
