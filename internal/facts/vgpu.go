// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"io"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pci"
)

// VGPU is what a virtual GPU says of the driver on the hypervisor that cut it out of a real one.
type VGPU struct {
	Version string `json:"version,omitempty"` // 550.90
	Branch  string `json:"branch,omitempty"`  // r550_00
}

// vgpu looks for a virtual GPU.
func (g *gathering) vgpu(gpus []PCI) *VGPU {
	for _, p := range gpus {
		var config [256]byte // the part with the capabilities; only root gets more than 64 bytes
		n, err := g.v.ReadAt(pci.Bus+"/"+p.Address+"/config", config[:], 0)
		if err != nil && !errors.Is(err, io.EOF) {
			continue
		}
		if v := vgpu(config[:n]); v != nil {
			return v
		}
	}
	return nil
}

// vgpu reads PCI configuration space, nil if it is not a virtual GPU's. Those have a vendor's
// capability (id 9) that begins with "VF" and holds records of a type and a length; type 0 is the
// host's driver: ten bytes version, ten bytes branch.
// Sources: PCI Local Bus Specification 3.0, 6.7; https://github.com/NVIDIA/k8s-device-plugin,
// internal/vgpu.
func vgpu(config []byte) *VGPU {
	if len(config) < 256 || config[6]&0x10 == 0 { // status: has capabilities
		return nil
	}

	const vendors = 9
	at := int(config[0x34])
	for range 64 { // there is no room for more, and a chain may loop
		if at == 0 || at+5 > len(config) {
			return nil
		}
		if config[at] == vendors {
			break
		}
		at = int(config[at+1])
	}
	if config[at] != vendors || config[at+3] != 'V' || config[at+4] != 'F' {
		return nil
	}

	records := config[at+5 : max(at+5, min(len(config), at+int(config[at+2])))]
	for len(records) >= 2 && records[0] != 0 && records[1] >= 2 && int(records[1]) <= len(records) {
		records = records[records[1]:]
	}

	v := &VGPU{}
	if len(records) >= 22 && records[0] == 0 {
		v.Version = strings.Trim(string(records[2:12]), "\x00")
		v.Branch = strings.Trim(string(records[12:22]), "\x00")
	}
	return v
}
