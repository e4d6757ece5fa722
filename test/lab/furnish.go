// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuadm/gpuadm/test/must"
)

// Where a host keeps what the lab puts in it.
const (
	ours     = "/usr/lib/gpuadm-lab"
	ourUnit  = "/usr/lib/systemd/system/gpuadm-lab.service"
	ourWants = "/usr/lib/systemd/system/sysinit.target.wants/gpuadm-lab.service"
)

// furnish fills the host's own layer: gpuadm, a fake of NVIDIA's runtime, a simulated PCI bus, and
// a unit that early at each boot makes of the container what a machine is.
func (m *Machine) furnish(binary string) error {
	gpuadm, err := os.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("cannot read gpuadm: %w", err)
	}
	put := m.putter()
	put("/usr/local/sbin/gpuadm", string(gpuadm), 0o755)
	unit := &strings.Builder{}
	unit.WriteString("[Unit]\nDescription=Make a machine of this container\nDefaultDependencies=no\nBefore=sysinit.target\n\n" +
		"[Service]\nType=oneshot\nRemainAfterExit=yes\n")
	// systemd-nspawn mounts the first version's controllers read-only. They are the host's own, and
	// containers need them.
	for _, controllers := range append(firstControllers(), "") {
		fmt.Fprintf(unit, "ExecStart=-/usr/bin/mount -o remount,rw,bind %s\n", filepath.Join(cgroupRoot, controllers))
	}
	unit.WriteString(m.kubeletBoot())
	if m.Options.GPUs > 0 {
		devices, err := PCI(m.Options.Kind, m.Options.GPUs)
		if err != nil {
			return err
		}
		for name, text := range devices {
			put(ours+"/pci/sys/"+name, text, 0o444)
		}
		fmt.Fprintf(unit, "ExecStart=/usr/bin/mount --bind %s/pci/sys /sys/bus/pci/devices\n", ours)
	}
	put(ourUnit, unit.String(), 0o644)
	link := m.path("upper") + ourWants
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return fmt.Errorf("cannot furnish the host: %w", err)
	}
	if err := os.Symlink("../gpuadm-lab.service", link); err != nil {
		return fmt.Errorf("cannot furnish the host: %w", err)
	}
	// What Debian does by the clock would change a host in the midst of a test: at midnight, at
	// six, at eighteen.
	for _, timer := range []string{"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"} {
		put("/etc/systemd/system/"+timer, "", 0o644) // an empty unit is a masked one: systemd.unit(5)
	}
	// All hosts share one kernel: the udev of each would handle the devices of all, at each boot of
	// each. Only a network needs it, since systemd-networkd waits until udev has seen an interface;
	// and the kernel shows the events of interfaces only to their own host.
	if m.Options.Wire != nil {
		put("/etc/systemd/system/systemd-udev-trigger.service.d/net.conf",
			"[Service]\nExecStart=\nExecStart=-udevadm trigger --type=devices --action=add --subsystem-match=net\n", 0o644)
	} else {
		for _, unit := range []string{"systemd-udevd.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-udev-trigger.service"} {
			put("/etc/systemd/system/"+unit, "", 0o644)
		}
	}
	if m.Options.Repos != "" && m.Options.Dist != RHELish {
		put("/etc/apt/sources.list", "# this host has no network\n", 0o644)
	}
	if m.Options.Dist == RHELish {
		if err := m.hide(debianTools()...); err != nil {
			return err
		}
	}
	if m.Options.Name != "" {
		put("/etc/hostname", m.Options.Name+"\n", 0o644)
	}
	if err := errors.Join(m.furnishWire(put), m.furnishKubelet(put), m.furnishSSH(put)); err != nil {
		return err
	}
	return put("/usr/bin/nvidia-container-runtime", "#!/bin/sh\nexec /usr/bin/runc \"$@\"\n", 0o755)
}

// putter returns a function that writes files into the host's own layer while it is not mounted.
// Once a file could not be written, it writes no more and returns that error.
func (m *Machine) putter() func(name, text string, mode os.FileMode) error {
	var failed error
	return func(name, text string, mode os.FileMode) error {
		if failed != nil {
			return failed
		}
		place := m.path("upper") + name
		if failed = os.MkdirAll(filepath.Dir(place), 0o755); failed == nil {
			failed = os.WriteFile(place, []byte(text), mode)
		}
		if failed != nil {
			failed = fmt.Errorf("cannot furnish the host: %w", failed)
		}
		return failed
	}
}

// firstControllers are the first version's hierarchies this process is in, as systemd-nspawn names
// their folders.
func firstControllers() (list []string) {
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		if part := strings.SplitN(line, ":", 3); len(part) == 3 && part[1] != "" {
			list = append(list, strings.TrimPrefix(part[1], "name="))
		}
	}
	return list
}

// pciFunction is a function on the bus: ids as in pci.ids, without 0x.
type pciFunction struct{ vendor, device, class, subsystem string }

// functions are those of n GPUs of a kind, and of what a machine with such GPUs has beside them.
// Source: pci.ids, and the table of GPUs in the README of NVIDIA/open-gpu-kernel-modules.
func functions(kind string, n int) ([]pciFunction, error) {
	gpu := pciFunction{vendor: "10de", class: "030200"}
	var list []pciFunction
	switch kind {
	case "": // H100 SXM5 80GB
		gpu.device, gpu.subsystem = "2330", "16c1"
	case "HGX H100": // with its NVSwitches
		gpu.device, gpu.subsystem = "2330", "16c1"
		for range 4 {
			list = append(list, pciFunction{"10de", "22a3", "068000", "1796"})
		}
	case "A100": // SXM4 80GB
		gpu.device, gpu.subsystem = "20b2", "1463"
	case "T4":
		gpu.device, gpu.subsystem = "1eb8", "12a2"
	case "V100": // PCIe 32GB
		gpu.device, gpu.subsystem = "1db6", "124a"
	case "B200":
		gpu.device, gpu.subsystem = "2901", "1999"
	case "GB200":
		gpu.device, gpu.subsystem = "2941", "2046"
	default:
		return nil, fmt.Errorf("cannot make GPUs of the kind %q", kind)
	}
	for range n {
		list = append(list, gpu)
	}
	return list, nil
}

// PCI is the bus of a machine with n GPUs of a kind: the files in the folders of
// /sys/bus/pci/devices. gpuadm reads uevent, other programs the rest.
func PCI(kind string, n int) (files map[string]string, err error) {
	fs, err := functions(kind, n)
	if err != nil {
		return nil, err
	}
	return pciBus(fs), nil
}

// pciBus makes the files of a machine with a host bridge and some functions, each on a bus of its
// own.
func pciBus(functions []pciFunction) map[string]string {
	files := map[string]string{}
	add := func(bus int, f pciFunction) {
		address := fmt.Sprintf("0000:%02x:00.0", bus)
		for name, text := range map[string]string{
			"vendor": "0x" + f.vendor, "device": "0x" + f.device, "class": "0x" + f.class,
			"subsystem_vendor": "0x" + f.vendor, "subsystem_device": "0x" + f.subsystem, "numa_node": "-1",
			"uevent": event(address, f),
		} {
			files[address+"/"+name] = text + "\n"
		}
	}
	add(0, pciFunction{"8086", "0d57", "060000", "0000"})
	for i, f := range functions {
		add(0x18+0x10*i, f)
	}
	return files
}

// event is a function's uevent file without a driver: pci_uevent in drivers/pci/pci-driver.c in the
// kernel's tree. Of the host bridge of such a machine: PCI_CLASS=60000, PCI_ID=8086:0D57,
// PCI_SUBSYS_ID=0000:0000, PCI_SLOT_NAME=0000:00:00.0.
func event(address string, f pciFunction) string {
	id := strings.ToUpper(f.device)
	vendor := strings.ToUpper(f.vendor)
	return fmt.Sprintf("PCI_CLASS=%s\nPCI_ID=%s:%s\nPCI_SUBSYS_ID=%s:%s\nPCI_SLOT_NAME=%s",
		strings.TrimLeft(f.class, "0"), vendor, id, vendor, strings.ToUpper(f.subsystem), address)
}

// SetGPUs puts other GPUs on the host's bus, which was booted with some.
func (h *Host) SetGPUs(kind string, n int) {
	h.t.Helper()
	fs := must.Get(functions(kind, n))(h.t)
	script := &strings.Builder{}
	fmt.Fprintf(script, "set -e\ncd %s/pci\nrm -rf sys/*\n", ours)
	for name, text := range pciBus(fs) {
		fmt.Fprintf(script, "mkdir -p sys/%s; printf '%%s' '%s' >sys/%s\n", filepath.Dir(name), text, name)
	}
	h.Must("sh", "-c", script.String())
}
