// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pci"
)

// offBus reads the first 64 bytes of the configuration space, as any user may: a device that is
// gone reads as all ones. The other attributes in sysfs are the kernel's cached values. Sources:
// Documentation/PCI/sysfs-pci.rst in the kernel's tree; PCI Express Base Specification, "Completion
// Status": all ones.
func offBus(m *Machine) (found []Finding) {
	for _, p := range m.GPUs() {
		var vendor [4]byte
		n, err := m.View.ReadAt(pci.Bus+"/"+p.Address+"/config", vendor[:], 0)
		if (err == nil || n == len(vendor)) && bytes.Equal(vendor[:], []byte{0xff, 0xff, 0xff, 0xff}) {
			found = append(found, Finding{Object: p.Address, What: fmt.Sprintf("GPU %s (%s) does not answer on the PCI bus", p.Address, p.Model)})
		}
	}
	return found
}

func resetCommand(address string) string { return "sudo nvidia-smi --gpu-reset -i " + address }

// gpuNotListed leaves out GPUs that another kernel driver holds: vfio, for virtual machines, or nouveau,
// which has a check of its own.
func gpuNotListed(m *Machine) (found []Finding) {
	gpus, ok := m.NVML()
	if !ok {
		return nil
	}
	for _, p := range m.GPUs() {
		if _, there := gpus[p.Address]; !there && (p.Driver == "" || p.Driver == "nvidia") {
			what := fmt.Sprintf("GPU %s (%s) is on the PCI bus, and the driver does not list it", p.Address, p.Model)
			if line := lastLineWith(m.sinceLoad(), "NVRM: The NVIDIA GPU "+p.Address); line != "" {
				what += ": " + line
			}
			found = append(found, Finding{Object: p.Address, What: what})
		}
	}
	return found
}

// ofGPUs returns one finding for each GPU that the driver answers for, and that has a fault.
func ofGPUs(what func(host.GPU) string, command func(address string) string) func(*Machine) []Finding {
	return func(m *Machine) (found []Finding) {
		gpus, _ := m.NVML()
		for address, g := range gpus {
			if says := what(g); says != "" {
				f := Finding{Object: address, What: "GPU " + address + " " + says}
				if command != nil {
					f.Command = command(address)
				}
				found = append(found, f)
			}
		}
		return found
	}
}

// when returns the text if the fault is there.
func when(has func(host.GPU) bool, what string) func(host.GPU) string {
	return func(g host.GPU) string {
		if !has(g) {
			return ""
		}
		return what
	}
}

func lost(g host.GPU) string {
	if g.Lost == "" {
		return ""
	}
	return "does not answer: " + g.Lost
}

// down are the NVLinks of a GPU that carry nothing, and should: those that are up on another GPU of
// this kind. A board may have more links than its bridges, and NVML may have more than the board:
// https://github.com/Azure/azurehpc-health-checks/issues/162; pkg/gpu/mocknvml in
// https://github.com/NVIDIA/k8s-test-infra.
func (m *Machine) down(g host.GPU) (links []int) {
	for _, link := range g.LinksDown {
		if slices.ContainsFunc(m.answering(), func(o host.GPU) bool {
			return o.Name == g.Name && !slices.Contains(o.LinksDown, link)
		}) {
			links = append(links, link)
		}
	}
	return links
}

// linksDown leaves out GPUs that Xids or a broken peer explain: edges.go.
func linksDown(m *Machine) []Finding {
	return ofGPUs(func(g host.GPU) string {
		links := m.down(g)
		if len(links) == 0 {
			return ""
		}
		return fmt.Sprintf("has NVLinks that carry nothing: %v", links)
	}, nil)(m)
}

// withoutECC finds GPUs that are another than those of their kind: which of both is wanted, only an
// operator knows.
func withoutECC(m *Machine) []Finding {
	return ofGPUs(func(g host.GPU) string {
		if g.ECC != "off" || !slices.ContainsFunc(m.answering(), func(o host.GPU) bool { return o.Name == g.Name && o.ECC == "on" }) {
			return ""
		}
		return "has ECC off, and others of its kind have it on"
	}, func(address string) string { return "sudo nvidia-smi -i " + address + " --ecc-config=1" })(m)
}

func limited(g host.GPU) string {
	if g.PowerLimit == 0 || g.PowerLimit >= g.PowerUsual*9/10 {
		return ""
	}
	return fmt.Sprintf("is limited to %d W of its usual %d", g.PowerLimit, g.PowerUsual)
}

func uncorrected(g host.GPU) string {
	if g.Uncorrected == 0 {
		return ""
	}
	return fmt.Sprintf("had uncorrected memory errors since the driver started it: %d", g.Uncorrected)
}

// unlicensed finds GPUs of a vGPU guest without a licence.
func unlicensed(m *Machine) []Finding {
	if m.Facts().VGPU == nil {
		return nil // passed through whole: only the guest driver's daemon shows whether it wants a licence
	}
	return ofGPUs(host.GPU.Unlicensed, nil)(m)
}

func slowed(why, what string) func(*Machine) []Finding {
	return ofGPUs(when(func(g host.GPU) bool { return g.Slowed == why }, what), nil)
}

// bareMetal says whether neither a hypervisor nor a container is around this system; false where
// systemd does not say.
func (m *Machine) bareMetal() bool {
	_, err := m.View.Ask(m.ctx, "systemd-detect-virt", "--quiet")
	none := (*host.CommandError)(nil)
	return errors.As(err, &none) && none.Code == 1
}

// pcieNarrow compares the link with what both ends support. It skips virtual machines, whose links the
// hypervisor invents. Speed falls while a GPU is idle: it counts only while a program computes.
func pcieNarrow(m *Machine) (found []Finding) {
	gpus, _ := m.NVML()
	for _, p := range m.GPUs() {
		dev, err := m.View.Resolve(pci.Bus + "/" + p.Address)
		if err != nil {
			continue
		}
		best := func(of string) (now, both float64) {
			return m.link(dev + "/current_link_" + of), min(m.link(dev+"/max_link_"+of), m.link(path.Dir(dev)+"/max_link_"+of))
		}
		if now, both := best("width"); now > 0 && now < both {
			found = append(found, Finding{Object: p.Address, What: fmt.Sprintf("GPU %s has %v of %v PCIe lanes", p.Address, now, both)})
		}
		if now, both := best("speed"); now > 0 && now < both && len(gpus[p.Address].Clients) > 0 {
			found = append(found, Finding{Object: p.Address, What: fmt.Sprintf("GPU %s computes, and its PCIe link has %v of %v GT/s", p.Address, now, both)})
		}
	}
	if len(found) > 0 && !m.bareMetal() {
		return nil
	}
	return found
}

// link is a number of lanes, or of GT/s; 0 where none is known: 63 and 255 lanes are what a link
// that is down reads as, and no link has 128 GT/s.
func (m *Machine) link(name string) float64 {
	text, _ := m.text(name)
	number, _, _ := strings.Cut(text, " ") // 16.0 GT/s PCIe
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.HasSuffix(name, "width") && n > 32 {
		return 0
	}
	return n
}

// noDirect finds what keeps a network card from a GPU's memory, where a module asks for that way:
// an IOMMU that translates, and a switch whose ACS sends what is for a neighbour up to the
// processor. Sources: https://docs.nvidia.com/cuda/gpudirect-rdma/ ("Supported Systems");
// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (ACS);
// Documentation/ABI/testing/sysfs-kernel-iommu_groups in the kernel's tree (type).
func noDirect(m *Machine) (found []Finding) {
	if !m.has("/sys/module/nvidia_peermem") && !m.has("/sys/module/gdrdrv") || !m.bareMetal() {
		return nil
	}
	for _, p := range m.GPUs() {
		dev, err := m.View.Resolve(pci.Bus + "/" + p.Address)
		if err != nil {
			continue
		}
		if kind, _ := m.text(dev + "/iommu_group/type"); strings.HasPrefix(kind, "DMA") {
			found = append(found, Finding{
				Object: p.Address, What: fmt.Sprintf("the IOMMU translates what reaches GPU %s (%s)", p.Address, kind), Part: "iommu",
				Fix: "boot the kernel with iommu=pt", Command: "cat /proc/cmdline",
			})
		}
		port := path.Dir(dev)
		if !strings.HasPrefix(path.Base(path.Dir(port)), "pci") && m.redirects(port+"/config") { // no root port, which joins nothing
			address := path.Base(port)
			found = append(found, Finding{Object: p.Address, What: fmt.Sprintf("the PCIe switch's port %s above GPU %s redirects by ACS", address, p.Address), Command: "sudo lspci -vvv -s " + address})
		}
	}
	return found
}

// redirects reads the ACS control register of a port: among the extended capabilities (id, then the
// next one's place) that of id 13, at 6 the bits for requests (4) and completions (8). Source:
// pci_regs.h in the kernel's tree, PCI_EXT_CAP_ID_ACS.
func (m *Machine) redirects(config string) bool {
	for at, tries := int64(0x100), 0; at >= 0x100 && tries < 48; tries++ {
		var head [8]byte
		if n, _ := m.View.ReadAt(config, head[:], at); n < len(head) {
			return false // only root reads so far
		}
		word := binary.LittleEndian.Uint32(head[:])
		if word&0xffff == 0x000d {
			return binary.LittleEndian.Uint16(head[6:])&0xc != 0
		}
		at = int64(word >> 20)
	}
	return false
}

func noPersistence(m *Machine) []Finding {
	u, ok := m.Unit(drivers.PersistencedUnit)
	if !ok || !m.loaded() || u.Enabled != "enabled" || u.Active == "active" || u.Active == "activating" {
		return nil
	}
	return []Finding{{What: drivers.PersistencedUnit + " is enabled and " + u.Active}}
}
