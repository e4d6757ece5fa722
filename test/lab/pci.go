// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuadm/gpuadm/test/must"
)

// pciFunction is a function on the bus: ids as in pci.ids, without 0x.
type pciFunction struct {
	vendor    string
	device    string
	class     string
	subsystem string
}

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
func PCI(kind string, n int) (map[string]string, error) {
	all, err := functions(kind, n)
	if err != nil {
		return nil, err
	}
	return pciBus(all), nil
}

// pciBus makes the files of a machine with a host bridge and some functions, each on a bus of its
// own.
func pciBus(functions []pciFunction) map[string]string {
	files := map[string]string{}
	addFunction(files, 0, pciFunction{"8086", "0d57", "060000", "0000"})
	for i, f := range functions {
		addFunction(files, 0x18+0x10*i, f)
	}
	return files
}

// addFunction adds the files of a function on a bus.
func addFunction(files map[string]string, bus int, f pciFunction) {
	address := fmt.Sprintf("0000:%02x:00.0", bus)
	for name, text := range map[string]string{
		"vendor":           "0x" + f.vendor,
		"device":           "0x" + f.device,
		"class":            "0x" + f.class,
		"subsystem_vendor": "0x" + f.vendor,
		"subsystem_device": "0x" + f.subsystem,
		"numa_node":        "-1",
		"uevent":           uevent(address, f),
	} {
		files[address+"/"+name] = text + "\n"
	}
}

// uevent is a function's uevent file without a driver: pci_uevent in drivers/pci/pci-driver.c in
// the kernel's tree. Of the host bridge of such a machine: PCI_CLASS=60000, PCI_ID=8086:0D57,
// PCI_SUBSYS_ID=0000:0000, PCI_SLOT_NAME=0000:00:00.0.
func uevent(address string, f pciFunction) string {
	class := strings.TrimLeft(f.class, "0")
	vendor := strings.ToUpper(f.vendor)
	device := strings.ToUpper(f.device)
	subsystem := strings.ToUpper(f.subsystem)
	return fmt.Sprintf("PCI_CLASS=%s\nPCI_ID=%s:%s\nPCI_SUBSYS_ID=%s:%s\nPCI_SLOT_NAME=%s",
		class, vendor, device, vendor, subsystem, address)
}

// SetGPUs puts other GPUs on the host's bus, which was booted with some.
func (h *Host) SetGPUs(kind string, n int) {
	h.t.Helper()
	files := must.Get(PCI(kind, n))(h.t)

	script := &strings.Builder{}
	fmt.Fprintf(script, "set -e\ncd %s/pci\nrm -rf sys/*\n", labFolder)
	for name, text := range files {
		fmt.Fprintf(script, "mkdir -p sys/%s; printf '%%s' '%s' >sys/%s\n", filepath.Dir(name), text, name)
	}
	h.Must("sh", "-c", script.String())
}
