// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import "github.com/gpuadm/gpuadm/internal/pci"

// pci lists the NVIDIA functions on the bus, in bus order. Not nil: the bus was read.
func (l *look) pci() []PCI {
	found := []PCI{}
	all, err := pci.Functions(l.v)
	if err != nil {
		l.fail("list", pci.Bus, err)
	}
	for _, p := range all {
		if p.Vendor == pci.Nvidia {
			p.Model = model(p.Device, p.Subsystem)
			found = append(found, p)
		}
	}
	return found
}
