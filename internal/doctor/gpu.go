// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pci"
)

// offBus reads the first 64 bytes of the configuration space, as any user may: a device that is gone reads as all ones. The other
// attributes in sysfs are the kernel's cached values. Sources: Documentation/PCI/sysfs-pci.rst in the kernel's tree; PCI Express Base
// Specification, "Completion Status": all ones.
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

// unseen leaves out GPUs that another kernel driver holds: vfio, for virtual machines, or nouveau, which has a check of its own.
func unseen(m *Machine) (found []Finding) {
	gpus, ok := m.NVML()
	if !ok {
		return nil
	}
	for _, p := range m.GPUs() {
		if _, there := gpus[p.Address]; !there && (p.Driver == "" || p.Driver == "nvidia") {
			found = append(found, Finding{Object: p.Address, What: fmt.Sprintf("GPU %s (%s) is on the PCI bus, and the driver does not list it", p.Address, p.Model)})
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

func uncorrected(g host.GPU) string {
	if g.Uncorrected == 0 {
		return ""
	}
	return fmt.Sprintf("had uncorrected memory errors since the driver started it: %d", g.Uncorrected)
}

// unlicensed finds GPUs of a vGPU guest without a licence.
func unlicensed(m *Machine) []Finding {
	if m.Facts().VGPU == nil {
		return nil // passed through whole: whether a guest driver wants a licence shows only its daemon
	}
	return ofGPUs(host.GPU.Unlicensed, nil)(m)
}

func slowed(why, what string) func(*Machine) []Finding {
	return ofGPUs(when(func(g host.GPU) bool { return g.Slowed == why }, what), nil)
}

// narrow compares the link's width with what both ends support. It skips virtual machines, whose links the hypervisor invents, and
// does not compare speed, which falls while a GPU is idle.
func narrow(m *Machine) (found []Finding) {
	if m.Facts().Virt != "" {
		return nil
	}
	for _, p := range m.GPUs() {
		dev, err := m.View.Resolve(pci.Bus + "/" + p.Address)
		if err != nil {
			continue
		}
		now, can, port := m.width(dev+"/current_link_width"), m.width(dev+"/max_link_width"), m.width(path.Dir(dev)+"/max_link_width")
		if best := min(can, port); now > 0 && now < best {
			found = append(found, Finding{Object: p.Address, What: fmt.Sprintf("GPU %s has %d of %d PCIe lanes", p.Address, now, best)})
		}
	}
	return found
}

// width is a number of lanes; 0 where none is known: 63 and 255 are what a link that is down reads as.
func (m *Machine) width(name string) int {
	text, _ := m.text(name)
	n, err := strconv.Atoi(text)
	if err != nil || n > 32 {
		return 0
	}
	return n
}

func noPersistence(m *Machine) []Finding {
	u, ok := m.Unit(drivers.PersistencedUnit)
	if !ok || !m.loaded() || u.Enabled != "enabled" || u.Active == "active" || u.Active == "activating" {
		return nil
	}
	return []Finding{{What: drivers.PersistencedUnit + " is enabled and " + u.Active}}
}

// fabric names what connects the GPUs over NVLink; "" if the machine manages none of it.
func (m *Machine) fabric() string {
	kind, _ := m.joined.read(m, "the catalog of GPUs", func() (string, error) {
		return drivers.FabricOf(drivers.Load(), m.Facts()), nil
	})
	return kind
}

func otherFabricManager(m *Machine) []Finding {
	version, all := m.Facts().Modules.Version, m.Packages()
	if version == "" || m.fabric() == "" || m.fabric() == drivers.FabricRack || !m.ownDriver() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all.packages)) {
		if !strings.HasPrefix(name, "nvidia-fabricmanager") && name != "nvidia-fabric-manager" || strings.Contains(name, "dev") {
			continue
		}
		p := all.packages[name]
		v := driverVersion().FindStringSubmatch(p.Version)
		if v == nil || !p.Installed() || v[1] == version {
			continue
		}
		command := "apt-get install " + name + "=" + version + "\\*"
		if all.packager == "dnf" {
			command = "dnf install " + name + "-" + version
		}
		return []Finding{{Object: name, What: fmt.Sprintf("%s is %s, and the module nvidia that is loaded is %s", name, v[1], version), Command: command}}
	}
	return nil
}

func noInfiniband(m *Machine) []Finding {
	k, ok := m.running()
	if !ok || !m.loaded() || m.fabric() != drivers.FabricNVLink5 || len(k.Infiniband) == len(facts.InfinibandModules()) {
		return nil
	}
	if u, known := m.Unit(drivers.FabricManagerUnit); !known || u.Enabled != "enabled" {
		return nil // a virtual machine without the switches: another one manages them
	}
	f := Finding{What: fmt.Sprintf("kernel %s has not all of %s", k.Kernel, strings.Join(facts.InfinibandModules(), " and ")), Command: "modprobe -a mlx5_ib ib_umad"}
	if m.Facts().OS.ID == "ubuntu" {
		f.Command = "apt-get install linux-modules-extra-" + k.Kernel + " && " + f.Command
	}
	return []Finding{f}
}

func noFabricManager(m *Machine) []Finding {
	kind := m.fabric()
	if !m.loaded() || !m.ownDriver() || kind == "" || kind == drivers.FabricRack {
		return nil
	}
	u, ok := m.Unit(drivers.FabricManagerUnit)
	if !ok || u.Active == "active" || u.Active == "activating" || kind == drivers.FabricNVLink5 && u.Enabled != "enabled" {
		return nil
	}
	if u.Load == "not-found" {
		return []Finding{{What: "the machine has NVSwitches, and no fabric manager is installed", Command: planDriver()}}
	}
	return []Finding{{What: drivers.FabricManagerUnit + " is " + u.Active + " (" + u.Enabled + ")"}}
}

// notRegistered leaves out GPUs in MIG mode, which do not register with the fabric, and a machine that has just booted.
func notRegistered(m *Machine) []Finding {
	u, ok := m.Unit(drivers.FabricManagerUnit)
	return ofGPUs(func(g host.GPU) string {
		switch {
		case g.Lost != "" || g.Mode || g.Fabric.State == "" || g.Fabric.State == "completed" && g.Fabric.Status == "":
			return ""
		case g.Fabric.State != "completed" && (!ok || u.Uptime < 10*time.Minute):
			return ""
		case g.Fabric.Status != "":
			return "could not be registered with the fabric: " + g.Fabric.Status
		}
		return "is not registered with the fabric: " + g.Fabric.State
	}, nil)(m)
}

// xidCode is the code of the check of all Xids.
const xidCode = "GPU-011"

// seenXids are the Xids in the log, by the GPU's address and number, with the driver's text.
func (m *Machine) seenXids() map[string]map[int][]string {
	found := map[string]map[int][]string{}
	for _, line := range m.sinceLoad() {
		address, number, says, ok := faults.ReadXid(line)
		if !ok {
			continue
		}
		if found[address] == nil {
			found[address] = map[int][]string{}
		}
		found[address][number] = append(found[address][number], says)
	}
	return found
}

// xids finds the Xids of each GPU, one for each part: the root cause, which names the others. It leaves out what is over: the log keeps the
// lines of a GPU that was reset since.
func xids(m *Machine) (found []Finding) {
	gpus, _ := m.NVML()
	for address, seen := range m.seenXids() {
		g, answers := gpus[address]
		at := map[faults.Part]int{}
		for _, x := range faults.Xids() {
			lines := seen[x.Number]
			if len(lines) == 0 || answers && over(x, g) {
				continue
			}
			what := fmt.Sprintf("Xid %d, %s", x.Number, x.Means)
			if n := len(lines); n > 1 {
				what += fmt.Sprintf(", %d times", n)
			}
			if i, more := at[x.Of]; more {
				found[i].What += "; " + what
				continue
			}
			at[x.Of] = len(found)
			found = append(found, Finding{
				Object: address, Part: string(x.Of), What: "GPU " + address + " reported " + what, Fix: x.Action(),
				Command: xidCommand(x, address), Note: x.Of == faults.OfProgram,
			})
		}
		found = append(found, recovery(address, seen[154])...)
	}
	return found
}

func xidCommand(x faults.Xid, address string) string {
	switch x.Remedy {
	case faults.Reset:
		return resetCommand(address)
	case faults.Power:
		return "sudo poweroff"
	case faults.Report:
		return "sudo nvidia-bug-report.sh"
	}
	return ""
}

// over says whether the GPU answers and shows no sign of the error any more.
func over(x faults.Xid, g host.GPU) bool {
	clean := !g.RemapWaits && !g.RemapFails
	switch {
	case g.Lost != "":
		return false
	case x.Of == faults.OfBus:
		return true
	case x.Number == 63 || x.Number == 64:
		return clean
	}
	return x.Of == faults.OfMemory && g.ECC == "on" && g.Uncorrected == 0 && clean
}

// recovery reads the driver's last Xid 154 of a GPU: GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required).
func recovery(address string, lines []string) []Finding {
	if len(lines) == 0 {
		return nil
	}
	_, to, ok := strings.Cut(lines[len(lines)-1], ") to 0x")
	_, action, opened := strings.Cut(to, "(")
	action, _, closed := strings.Cut(action, ")")
	if !ok || !opened || !closed || action == "None" {
		return nil
	}
	f := Finding{
		Object: address, Part: "recovery", What: "of GPU " + address + " the driver asks for: " + action,
		Fix: "do what the driver asks for", Command: resetCommand(address),
	}
	if strings.Contains(action, "Reboot") {
		f.Command = "sudo reboot"
	}
	return []Finding{f}
}
