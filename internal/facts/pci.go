// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strconv"
	"strings"
)

// pci lists the NVIDIA functions on the bus, in bus order. Not nil: the bus was read.
// The attributes are what the kernel has cached; reading them does not wake a sleeping device.
// Source: Documentation/ABI/testing/sysfs-bus-pci in the kernel's tree.
func (l *look) pci() []PCI {
	found := []PCI{}
	const bus = "/sys/bus/pci/devices"
	maybe := l.nvidiaSlots()
	for _, address := range l.names(bus) {
		if maybe != nil && !maybe[slot(address)] {
			continue
		}
		dev := bus + "/" + address
		if to, err := l.v.Readlink(dev); err == nil { // in sysfs it is a link, which would be followed for each attribute
			if dev = to; !path.IsAbs(to) {
				dev = path.Join(bus, to)
			}
		}
		p, ok := event(l.attr(dev + "/uevent"))
		if !ok {
			p = l.attributes(dev)
		}
		if p.Vendor == nvidia {
			p.Address, p.Model = address, model(p.Device, p.Subsystem)
			found = append(found, p)
		}
	}
	return found
}

// event reads a function's uevent file, in which the kernel says at once what its attributes and the link of its driver say. The file
// of its configuration space says less: of a virtual function not who made it, of one that sleeps nothing before it has been woken.
// Sources: pci_uevent in drivers/pci/pci-driver.c, dev_uevent in drivers/base/core.c and pci_read_config in drivers/pci/pci-sysfs.c of
// the kernel's tree; "Device and vendor ID of a VF read as FFFFh" in the PCI Express specification's section on SR-IOV.
func event(text string) (p PCI, ok bool) {
	for line := range strings.SplitSeq(text, "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch id := strings.ToLower(value); key {
		case "DRIVER":
			p.Driver = value
		case "PCI_CLASS": // without leading zeros: 30200
			p.Class = strings.Repeat("0", max(0, 6-len(id))) + id
		case "PCI_ID":
			p.Vendor, p.Device, ok = strings.Cut(id, ":")
		case "PCI_SUBSYS_ID":
			p.Subsystem = id
		}
	}
	return p, ok && p.Class != "" && p.Subsystem != ""
}

// attributes reads a function's attributes, of NVIDIA's only: a recording of a machine may have these and no uevent.
func (l *look) attributes(dev string) (p PCI) {
	if l.hex(dev+"/vendor") != nvidia {
		return p
	}
	p.Vendor, p.Device, p.Class = nvidia, l.hex(dev+"/device"), l.hex(dev+"/class")
	if v, d := l.hex(dev+"/subsystem_vendor"), l.hex(dev+"/subsystem_device"); v != "" && d != "" {
		p.Subsystem = v + ":" + d
	}
	if to, err := l.v.Readlink(dev + "/driver"); err == nil {
		p.Driver = path.Base(to)
	}
	return p
}

const nvidia = "10de"

// nvidiaSlots returns the bus, device and function numbers at which there are NVIDIA functions in one domain or another;
// nil if the kernel does not list them. Large machines have many hundred functions, and this is one file in place of one
// for each. It cannot replace them: it leaves out the domain. Source: drivers/pci/proc.c in the kernel's tree.
func (l *look) nvidiaSlots() map[[3]uint64]bool {
	list := l.attr("/proc/bus/pci/devices")
	if list == "" {
		return nil
	}
	slots := map[[3]uint64]bool{}
	for line := range strings.SplitSeq(list, "\n") {
		place, rest, _ := strings.Cut(line, "\t")
		n, err := strconv.ParseUint(place, 16, 16) // bus, then 5 bits of device and 3 of function
		if err == nil && strings.HasPrefix(rest, nvidia) {
			slots[[3]uint64{n >> 8, n >> 3 & 31, n & 7}] = true
		}
	}
	return slots
}

// slot takes bus, device and function out of an address such as 0000:17:00.0.
func slot(address string) (at [3]uint64) {
	parts := strings.FieldsFunc(address, func(c rune) bool { return c == ':' || c == '.' })
	for i := range at {
		if j := len(parts) - 3 + i; j >= 0 {
			at[i], _ = strconv.ParseUint(parts[j], 16, 16)
		}
	}
	return at
}

// hex reads an attribute such as 0x10de and returns it without the prefix, in lower case.
func (l *look) hex(name string) string {
	return strings.ToLower(strings.TrimPrefix(l.attr(name), "0x"))
}
