// SPDX-License-Identifier: Apache-2.0

package incident

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Machine is a recorded machine that a mutation breaks, before it is simulated.
type Machine struct {
	t   *testing.T
	all *txtar.Archive
}

// Working is the recorded machine ubuntu24-h100 with a driver that works: driver.txtar says what
// that adds.
func Working(t *testing.T) *Machine {
	t.Helper()
	m := &Machine{t, &txtar.Archive{}}
	var settings []byte
	for _, name := range []string{"../../test/hosts/ubuntu24-h100.txtar", "../../test/incident/driver.txtar"} {
		part := must.Get(txtar.ParseFile(name))(t)
		for _, f := range part.Files {
			if f.Name == "sim.toml" {
				settings = slices.Concat(settings, []byte("\n"), f.Data)
			} else {
				m.all.Files = append(m.all.Files, f)
			}
		}
	}

	m.all.Files = append(m.all.Files, txtar.File{Name: "sim.toml", Data: settings})
	m.Put("usr/lib/modules/6.8.0-88-generic/modules.dep", "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\n")
	m.Module("6.8.0-88-generic", "580.95.05")
	for i, address := range m.GPUs() {
		m.Put("sys/bus/pci/devices/"+address+"/config nonl", "\xde\x10\x30\x23\n")
		m.Bind(address, "nvidia")
		m.Put(fmt.Sprintf("dev/nvidia%d type=char mode=0666", i), "")
		m.Settings(fmt.Sprintf("\n[[gpu]]\nmodel = \"H100-80\"\naddress = %q\n", address))
	}

	var status strings.Builder
	for _, p := range []string{
		"libnvidia-compute-580-server 580.95.05-0ubuntu0.24.04.2", "nvidia-utils-580-server 580.95.05-0ubuntu0.24.04.2",
		"nvidia-dkms-580-server-open 580.95.05-0ubuntu0.24.04.2", "nvidia-compute-utils-580-server 580.95.05-0ubuntu0.24.04.2",
		"nvidia-fabricmanager-580 580.95.05-0ubuntu0.24.04.1", "nvidia-container-toolkit 1.18.0-1", "man-db 2.12.0-4build2", "dpkg 1.22.6ubuntu6.5",
	} {
		name, version, _ := strings.Cut(p, " ")
		fmt.Fprintf(&status, "Package: %s\nStatus: install ok installed\nArchitecture: amd64\nVersion: %s\n\n", name, version)
	}

	m.Put("var/lib/dpkg/status", status.String())
	return m
}

// GPUs are the addresses of the machine's GPUs, in order.
func (m *Machine) GPUs() (all []string) {
	for _, f := range m.all.Files {
		if address, ok := strings.CutSuffix(strings.TrimPrefix(f.Name, "sys/bus/pci/devices/"), "/uevent"); ok && bytes.Contains(f.Data, []byte("PCI_CLASS=302")) {
			all = append(all, address)
		}
	}
	return all
}

// NVSwitches are the addresses of the machine's NVSwitches.
func (m *Machine) NVSwitches() (all []string) {
	for _, f := range m.all.Files {
		address, ok := strings.CutSuffix(strings.TrimPrefix(f.Name, "sys/bus/pci/devices/"), "/uevent")
		if ok && bytes.Contains(f.Data, []byte("PCI_ID=10DE:22A3")) {
			all = append(all, address)
		}
	}
	return all
}

// Bind gives a GPU to a kernel driver; "" takes it away.
func (m *Machine) Bind(address, driver string) {
	f := m.Find("sys/bus/pci/devices/" + address + "/uevent")
	lines := slices.DeleteFunc(strings.SplitAfter(string(f.Data), "\n"), func(l string) bool {
		return strings.HasPrefix(l, "DRIVER=")
	})
	if driver != "" {
		lines = append(lines, "DRIVER="+driver+"\n")
	}
	f.Data = []byte(strings.Join(lines, ""))
}

// Put writes a file with its markers in the place of the one with that path.
func (m *Machine) Put(section, data string) {
	m.Remove(strings.TrimSuffix(strings.Fields(section)[0], "/"))
	m.all.Files = append(m.all.Files, txtar.File{Name: section, Data: []byte(data)})
}

// Remove removes a file, and all below a folder.
func (m *Machine) Remove(name string) {
	kept := m.all.Files[:0]
	for _, f := range m.all.Files {
		path := strings.TrimSuffix(strings.Fields(f.Name)[0], "/")
		if path != name && !strings.HasPrefix(path, name+"/") {
			kept = append(kept, f)
		}
	}

	m.all.Files = kept
}

func (m *Machine) Find(name string) *txtar.File {
	m.t.Helper()
	for i := range m.all.Files {
		if strings.Fields(m.all.Files[i].Name)[0] == name {
			return &m.all.Files[i]
		}
	}

	m.t.Fatalf("the recorded machine has no %s", name)
	return nil
}

// Change replaces a text in a file; it must be there.
func (m *Machine) Change(name, from, to string) {
	m.t.Helper()
	f := m.Find(name)
	must.That(m.t, bytes.Contains(f.Data, []byte(from)), "%s of the recorded machine has no %q", name, from)
	f.Data = bytes.ReplaceAll(f.Data, []byte(from), []byte(to))
}

// Settings adds to what the recording says beside the files.
func (m *Machine) Settings(text string) {
	f := m.Find("sim.toml")
	f.Data = slices.Concat(f.Data, []byte(text))
}

// Says adds lines to the kernel's log.
func (m *Machine) Says(lines ...string) {
	m.Change("sim.toml", "major device number 509.\n", "major device number 509.\n"+strings.Join(lines, "\n")+"\n")
}

// GPU adds settings to a GPU.
func (m *Machine) GPU(nth int, settings string) {
	line := fmt.Sprintf("address = %q\n", m.GPUs()[nth])
	m.Change("sim.toml", line, line+settings+"\n")
}

// Unloaded is the machine before the module nvidia was loaded.
func (m *Machine) Unloaded() {
	m.Remove("sys/module/nvidia")
	m.Remove("sys/module/nvidia_uvm")
	m.Remove("proc/driver/nvidia")
	m.Remove("dev/nvidiactl")
	m.Remove("dev/nvidia-uvm")
	for i, address := range m.GPUs() {
		m.Bind(address, "")
		m.Remove(fmt.Sprintf("dev/nvidia%d", i))
	}

	m.Silent("DRIVER_NOT_LOADED", "the kernel module nvidia is not loaded")
	for _, unit := range []string{"nvidia-persistenced", "nvidia-fabricmanager"} {
		m.Fails(unit)
	}
}

// Silent has NVML not answer: its name of why, and the words.
func (m *Machine) Silent(code, why string) {
	m.Change("sim.toml", "[driver]\n", fmt.Sprintf("[driver]\ncode = %q\nwhy = %q\n", code, why))
}

// Answers has NVML answer again once a module is loaded that fits, where the machine is silent for want of
// one.
func (m *Machine) Answers() {
	f := m.Find("sim.toml")
	for _, code := range []string{"DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"} {
		before, rest, found := strings.Cut(string(f.Data), fmt.Sprintf("code = %q\nwhy = ", code))
		if _, after, isLine := strings.Cut(rest, "\n"); found && isLine {
			f.Data = []byte(before + after)
		}
	}
}

// Fails has a unit fail.
func (m *Machine) Fails(unit string) {
	from := "name = \"" + unit + ".service\"\nenabled = \"enabled\"\nactive = "
	m.Change("sim.toml", from+`"active"`, from+`"failed"`)
}

// Masked masks a unit, which then does not run.
func (m *Machine) Masked(unit string) {
	from := "name = \"" + unit + ".service\"\nenabled = \"enabled\"\nactive = \"active\""
	m.Change("sim.toml", from, "name = \""+unit+".service\"\nenabled = \"masked\"\nactive = \"inactive\"")
}

// Loops has a daemon end after each start: systemctl status says "activating (auto-restart)" of
// kubelet then, https://pastebin.com/9pgtDMNu and
// https://github.com/kubernetes/kubernetes/issues/83936.
func (m *Machine) Loops(unit string) {
	from := "name = \"" + unit + ".service\"\nenabled = \"enabled\"\nactive = "
	m.Change("sim.toml", from+`"active"`, from+"\"activating\"\nsub = \"auto-restart\"")
}

// Module puts an open module nvidia into a kernel's folder: what modinfo prints of one, in an ELF
// file.
func (m *Machine) Module(kernel, version string) {
	module := kmodule.Object(
		"license=Dual MIT/GPL", "version="+version, "firmware=nvidia/"+version+"/gsp_ga10x.bin",
		"vermagic="+kernel+" SMP preempt mod_unload modversions ")
	m.Put("usr/lib/modules/"+kernel+"/updates/dkms/nvidia.ko base64", base64.StdEncoding.EncodeToString(module)+"\n")
	m.Put("usr/lib/modules/"+kernel+"/updates/dkms/nvidia-uvm.ko size=4000000", "")
}

// Upgrade replaces all packages of the driver, as unattended-upgrades does, and leaves the module
// that is loaded.
func (m *Machine) Upgrade(version string) {
	for _, lib := range []string{"libnvidia-ml.so", "libcuda.so"} {
		at := "usr/lib/x86_64-linux-gnu/" + lib + "."
		m.Remove(at + "580.95.05")
		m.Put(at+"1 link="+lib+"."+version, "")
		m.Put(at+version+" size=2196648", "")
	}

	m.Change("var/lib/dpkg/status", "Version: 580.95.05", "Version: "+version)
	m.Change("var/lib/dpkg/status", "Package: nvidia-fabricmanager-580\nStatus: install ok installed\nArchitecture: amd64\nVersion: "+version, "Package: nvidia-fabricmanager-580\nStatus: install ok installed\nArchitecture: amd64\nVersion: 580.95.05")
	m.Module("6.8.0-88-generic", version)
	m.Put("var/log/dpkg.log", "2026-01-02 02:14:05 upgrade libnvidia-compute-580-server:amd64 580.95.05-0ubuntu0.24.04.2 "+version+"-0ubuntu0.24.04.2\n")
}

// NewKernel boots a kernel that the module was not built for.
func (m *Machine) NewKernel() {
	m.Unloaded()
	m.Put("usr/lib/modules/6.8.0-90-generic/modules.dep", "")
	m.Put("proc/sys/kernel/osrelease", "6.8.0-90-generic\n")
}

// Drop has the driver leave one GPU out.
func (m *Machine) Drop(nth int) {
	m.Change("sim.toml", fmt.Sprintf("\n[[gpu]]\nmodel = \"H100-80\"\naddress = %q\n", m.GPUs()[nth]), "")
}

// Package gives a package another status in dpkg's database.
func (m *Machine) Package(name, status string) {
	m.Change("var/lib/dpkg/status", "Package: "+name+"\nStatus: install ok installed", "Package: "+name+"\nStatus: "+status)
}

// Metal makes a machine without hypervisor of it, the link of whose second GPU has so many lanes;
// port and GPU can have 16.
func (m *Machine) Metal(lanes string) {
	m.Settings("[[command]]\nargv = [\"systemd-detect-virt\", \"--quiet\"]\nexit = 1\n")
	address, port := m.GPUs()[1], "sys/devices/pci0000:17/0000:17:01.0"
	dev := "sys/bus/pci/devices/" + address
	for i := range m.all.Files {
		if rest, ok := strings.CutPrefix(m.all.Files[i].Name, dev+"/"); ok {
			m.all.Files[i].Name = port + "/" + address + "/" + strings.Replace(rest, "link=../../../", "link=../../../../", 1)
		}
	}

	m.Put(dev+" link=../../../devices/pci0000:17/0000:17:01.0/"+address, "")
	m.Put(port+"/max_link_width", "16\n")
	m.Put(port+"/"+address+"/max_link_width", "16\n")
	m.Put(port+"/"+address+"/current_link_width", lanes+"\n")
}

// Node simulates the machine.
func (m *Machine) Node() *simhost.Node {
	m.t.Helper()
	n := must.Get(simhost.New(txtar.Format(m.all)))(m.t)
	return n
}
