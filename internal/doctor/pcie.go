// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pci"
)

// offBus reads the vendor from the first 64 bytes of the configuration space, which any user may
// read: a device that is gone reads as all ones. The other attributes in sysfs are the kernel's
// cached values. Sources: Documentation/PCI/sysfs-pci.rst in the kernel's tree; PCI Express Base
// Specification, "Completion Status": all ones.
func offBus(m *Machine) (found []Finding) {
	gone := []byte{0xff, 0xff, 0xff, 0xff}
	for _, device := range m.GPUs() {
		var vendor [4]byte
		n, err := m.View.ReadAt(pci.Bus+"/"+device.Address+"/config", vendor[:], 0)
		wasRead := err == nil || n == len(vendor)
		if !wasRead || !bytes.Equal(vendor[:], gone) {
			continue
		}

		found = append(found, Finding{
			Object: device.Address,
			What:   fmt.Sprintf("GPU %s (%s) does not answer on the PCI bus", device.Address, device.Model),
		})
	}

	return append(found, m.cameBack()...)
}

// pcieErrors notes errors of a GPU's PCIe link since the boot, as the kernel counts them.
// Correctable ones are usual. Source: Documentation/ABI/testing/sysfs-bus-pci-devices-aer in the
// kernel's tree.
func pcieErrors(m *Machine) (found []Finding) {
	for _, device := range m.GPUs() {
		var kinds []string
		for _, kind := range []string{"fatal", "nonfatal"} {
			text, _ := m.text(pci.Bus + "/" + device.Address + "/aer_dev_" + kind)
			_, total, _ := strings.Cut(text, "TOTAL_ERR_")
			fields := strings.Fields(total) // "FATAL 2"
			if len(fields) > 1 && fields[1] != "0" {
				kinds = append(kinds, fields[1]+" "+kind)
			}
		}

		if len(kinds) > 0 {
			found = append(found, Finding{
				Object: device.Address,
				What: fmt.Sprintf(
					"GPU %s had errors of its PCIe link since the boot: %s",
					device.Address, strings.Join(kinds, ", "),
				),
				Note: true,
			})
		}
	}
	return found
}

// fellOff is the Xid of a GPU that has fallen off the bus.
const fellOff = 79

// cameBack notes GPUs that have fallen off the bus in this boot, and answer again: the fault
// can come again.
func (m *Machine) cameBack() (found []Finding) {
	gpus, _ := m.NVML()
	seen := map[string]bool{}
	for _, line := range m.Log() {
		address, xid, ok := faults.ReadXid(line)
		gpu, isListed := gpus[address]
		if !ok || xid.Number != fellOff || !isListed || gpu.Lost != "" || seen[address] {
			continue
		}
		seen[address] = true
		found = append(found, Finding{
			Object: address,
			Part:   "over",
			What:   fmt.Sprintf("GPU %s fell off the bus in this boot (%s), and answers again: if it comes again, have the board replaced", address, xid.Name()),
			Note:   true,
		})
	}

	return found
}

// bareMetal reports whether this system runs on the hardware: in no virtual machine and in no
// container. It is false where systemd does not say.
func (m *Machine) bareMetal() bool {
	_, err := m.View.Ask(m.ctx, "systemd-detect-virt", "--quiet")
	none := (*host.CommandError)(nil)
	return errors.As(err, &none) && none.Code == 1
}

// pcieNarrow compares the link with what both ends support. It skips virtual machines, whose links
// the hypervisor invents. The speed counts only while a program computes: it falls while a GPU is
// idle.
func pcieNarrow(m *Machine) (found []Finding) {
	gpus, _ := m.NVML()
	for _, device := range m.GPUs() {
		folder, err := m.View.Resolve(pci.Bus + "/" + device.Address)
		if err != nil {
			continue
		}

		lanes, allLanes := m.link(folder, "width")
		if lanes > 0 && lanes < allLanes {
			found = append(found, Finding{
				Object: device.Address,
				What:   fmt.Sprintf("GPU %s has %v of %v PCIe lanes", device.Address, lanes, allLanes),
			})
		}

		speed, fullSpeed := m.link(folder, "speed")
		computes := len(gpus[device.Address].Clients) > 0
		if speed > 0 && speed < fullSpeed && computes {
			found = append(found, Finding{
				Object: device.Address,
				What:   fmt.Sprintf("GPU %s computes, and its PCIe link has %v of %v GT/s", device.Address, speed, fullSpeed),
			})
		}
	}

	if len(found) > 0 && !m.bareMetal() {
		return nil
	}
	return found
}

// link returns the width (in lanes) or the speed (in GT/s) of a device's link as it is now, and the
// most that both the device and the port above it support.
func (m *Machine) link(device, quantity string) (now, most float64) {
	now = m.linkAttribute(device + "/current_link_" + quantity)
	ofDevice := m.linkAttribute(device + "/max_link_" + quantity)
	ofPort := m.linkAttribute(path.Dir(device) + "/max_link_" + quantity)

	return now, min(ofDevice, ofPort)
}

// linkAttribute returns a number of lanes or of GT/s; 0 where it is not known. A link that is down
// reads as 63 or 255 lanes.
func (m *Machine) linkAttribute(name string) float64 {
	text, _ := m.text(name)
	number, _, _ := strings.Cut(text, " ") // 16.0 GT/s PCIe
	n, err := strconv.ParseFloat(number, 64)
	isDown := strings.HasSuffix(name, "width") && n > 32
	if err != nil || isDown {
		return 0
	}
	return n
}

// noDirect finds what keeps a network card from a GPU's memory, if a module for such access is
// loaded: an IOMMU that translates addresses, and a switch whose ACS sends requests for a neighbour
// up to the processor. Sources: https://docs.nvidia.com/cuda/gpudirect-rdma/ ("Supported Systems");
// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (ACS);
// Documentation/ABI/testing/sysfs-kernel-iommu_groups in the kernel's tree (type).
func noDirect(m *Machine) (found []Finding) {
	wantsDirect := m.has("/sys/module/nvidia_peermem") || m.has("/sys/module/gdrdrv")
	if !wantsDirect || !m.bareMetal() {
		return nil
	}

	for _, device := range m.GPUs() {
		folder, err := m.View.Resolve(pci.Bus + "/" + device.Address)
		if err != nil {
			continue
		}

		if kind, _ := m.text(folder + "/iommu_group/type"); strings.HasPrefix(kind, "DMA") {
			found = append(found, Finding{
				Object:  device.Address,
				What:    fmt.Sprintf("the IOMMU translates what reaches GPU %s (%s)", device.Address, kind),
				Part:    "iommu",
				Fix:     "boot the kernel with iommu=pt",
				Command: "cat /proc/cmdline",
			})
		}

		port := path.Dir(folder)
		isRoot := strings.HasPrefix(path.Base(path.Dir(port)), "pci") // a root port joins no neighbours
		if !isRoot && m.redirects(port+"/config") {
			address := path.Base(port)
			found = append(found, Finding{
				Object:  device.Address,
				What:    fmt.Sprintf("the PCIe switch's port %s above GPU %s redirects by ACS", address, device.Address),
				Command: "sudo lspci -vvv -s " + address,
			})
		}
	}

	return found
}

// redirects reads the ACS control register of a port, which is at offset 6 of the extended
// capability with the id 13. Its bits 4 and 8 redirect requests and completions. The head of each
// capability has its id, and the offset of the next one. Source: pci_regs.h in the kernel's tree,
// PCI_EXT_CAP_ID_ACS.
func (m *Machine) redirects(config string) bool {
	const (
		firstCapability  = 0x100
		mostCapabilities = 48
		idACS            = 0x000d
		redirectBits     = 0xc
	)
	offset := int64(firstCapability)
	for tries := 0; offset >= firstCapability && tries < mostCapabilities; tries++ {
		var head [8]byte
		if n, _ := m.View.ReadAt(config, head[:], offset); n < len(head) {
			return false // only root reads so far
		}

		word := binary.LittleEndian.Uint32(head[:])
		if word&0xffff == idACS {
			return binary.LittleEndian.Uint16(head[6:])&redirectBits != 0
		}
		offset = int64(word >> 20)
	}

	return false
}
