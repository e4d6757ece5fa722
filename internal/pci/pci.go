// SPDX-License-Identifier: Apache-2.0

// Package pci reads which functions are on the machine's PCI bus.
package pci

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
)

// Bus is the folder with one folder, or link to one, for each function, by its address. Source:
// Documentation/ABI/testing/sysfs-bus-pci in the kernel's tree.
const Bus = "/sys/bus/pci/devices"

// Nvidia is the vendor of NVIDIA's functions.
const Nvidia = "10de"

// Function is one PCI function.
type Function struct {
	Address   string `json:"address"`             // 0000:17:00.0
	Vendor    string `json:"vendor"`              // 10de
	Device    string `json:"device"`              // 2330
	Class     string `json:"class"`               // 030200
	Subsystem string `json:"subsystem,omitempty"` // 10de:16c1
	Driver    string `json:"driver,omitempty"`    // the kernel driver bound to it: nvidia, nouveau, vfio-pci
	Model     string `json:"model,omitempty"`     // H100 80GB: by the table of known devices; "" if unknown
}

// Display reports whether the function is a GPU (VGA or 3D controller), not an NVSwitch, audio or
// USB function.
func (f Function) Display() bool {
	return strings.HasPrefix(f.Class, "0300") || strings.HasPrefix(f.Class, "0302")
}

// Files are a machine's files.
type Files interface {
	ReadDir(name string) ([]string, error)
	ReadFile(name string) ([]byte, error)
}

// Functions lists the functions on the bus, by address and without their models; none if the
// machine has no bus. It leaves out a function that vanishes meanwhile.
//
// A function's uevent file has all that its attributes and the link to its driver say, and the
// kernel does not wake a sleeping device to write it. The file of the configuration space says
// less: not the vendor of a virtual function, and nothing about a sleeping function before the
// kernel has woken it. Sources: pci_uevent in drivers/pci/pci-driver.c, dev_uevent in
// drivers/base/core.c and pci_read_config in drivers/pci/pci-sysfs.c of the kernel's tree; "Device
// and vendor ID of a VF read as FFFFh" in the PCI Express specification's section on SR-IOV.
func Functions(v Files) (found []Function, err error) {
	addresses, err := v.ReadDir(Bus)
	if gone(err) {
		return nil, nil
	}

	for _, address := range addresses {
		text, readErr := v.ReadFile(Bus + "/" + address + "/uevent")
		if readErr != nil {
			if !gone(readErr) {
				err = errors.Join(err, readErr)
			}
			continue
		}

		f := parseUevent(string(text))
		if f.Vendor != "" {
			f.Address = address
			found = append(found, f)
		}
	}

	return found, err
}

// gone reports whether there is no such file, or its device has vanished.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENODEV)
}

// parseUevent reads the function that a uevent file describes. The file does not have its address.
func parseUevent(text string) (f Function) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		id := strings.ToLower(value)
		switch key {
		case "DRIVER":
			f.Driver = value
		case "PCI_CLASS": // without leading zeros: 30200
			f.Class = strings.Repeat("0", max(0, 6-len(id))) + id
		case "PCI_ID":
			f.Vendor, f.Device, _ = strings.Cut(id, ":")
		case "PCI_SUBSYS_ID":
			f.Subsystem = id
		}
	}

	return f
}
