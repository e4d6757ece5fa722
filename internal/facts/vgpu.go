// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"io"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pci"
)

// VGPU is the driver on the hypervisor of a virtual GPU, as the virtual GPU reports it.
type VGPU struct {
	Version string `json:"version,omitempty"` // 550.90
	Branch  string `json:"branch,omitempty"`  // r550_00
}

// vgpu looks for a virtual GPU.
func (g *gathering) vgpu(gpus []PCI) *VGPU {
	for _, gpu := range gpus {
		var config [256]byte // the part with the capabilities; only root gets more than 64 bytes
		n, err := g.v.ReadAt(pci.Bus+"/"+gpu.Address+"/config", config[:], 0)
		if err != nil && !errors.Is(err, io.EOF) {
			continue
		}
		if v := vgpu(config[:n]); v != nil {
			return v
		}
	}
	return nil
}

// vgpu reads PCI configuration space; nil if it is not a virtual GPU's. A virtual GPU has a
// vendor's capability that begins with "VF" and holds records of a type and a length; type 0 is the
// host's driver: ten bytes version, ten bytes branch.
// Source: https://github.com/NVIDIA/k8s-device-plugin, internal/vgpu.
func vgpu(config []byte) *VGPU {
	const (
		sizeAt  = 2 // the offsets in the capability
		magicAt = 3
		listAt  = 5
	)
	c := vendorCapability(config)
	if len(c) < listAt || string(c[magicAt:listAt]) != "VF" {
		return nil
	}
	size := min(len(c), int(c[sizeAt]))
	driver := hostDriver(c[listAt:max(listAt, size)])
	if driver == nil {
		return &VGPU{}
	}
	return &VGPU{
		Version: strings.Trim(string(driver[:10]), "\x00"),
		Branch:  strings.Trim(string(driver[10:20]), "\x00"),
	}
}

// vendorCapability returns configuration space from its vendor's capability (id 9) on; nil if it
// has none.
// Source: PCI Local Bus Specification 3.0, 6.7.
func vendorCapability(config []byte) []byte {
	const (
		statusAt        = 0x06
		hasCapabilities = 0x10 // a bit of the status
		firstAt         = 0x34
		vendors         = 9
	)
	if len(config) < 256 || config[statusAt]&hasCapabilities == 0 {
		return nil
	}

	at := int(config[firstAt])
	for range 64 { // there is no room for more, and a chain may loop
		if at == 0 || at+1 >= len(config) {
			return nil
		}
		if config[at] == vendors {
			return config[at:]
		}
		at = int(config[at+1])
	}

	return nil
}

// hostDriver returns the twenty bytes of the record of type 0; nil if there is none.
func hostDriver(records []byte) []byte {
	const header = 2 // bytes: the type, and the length with the header
	for len(records) >= header {
		size := int(records[1])
		if records[0] == 0 && len(records) >= header+20 {
			return records[header:]
		}
		if records[0] == 0 || size < header || size > len(records) {
			return nil
		}
		records = records[size:]
	}

	return nil
}
