// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Where a host keeps what the lab puts in it.
const (
	labFolder     = "/usr/lib/gpuadm-lab"
	labUnit       = "/usr/lib/systemd/system/gpuadm-lab.service"
	labUnitWanted = "/usr/lib/systemd/system/sysinit.target.wants/gpuadm-lab.service"
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
	if err := m.furnishPCI(put); err != nil {
		return err
	}
	if err := m.furnishUnit(put); err != nil {
		return err
	}
	m.maskUnits(put)
	if m.Options.Repos != "" && m.Options.Dist != RHELish {
		put("/etc/apt/sources.list", "# this host has no network\n", 0o644)
	}
	if m.Options.Name != "" {
		put("/etc/hostname", m.Options.Name+"\n", 0o644)
	}

	if m.Options.Dist == RHELish {
		if err := m.hide(debianTools()...); err != nil {
			return err
		}
	}

	if err := errors.Join(m.furnishWire(put), m.furnishKubelet(put), m.furnishSSH(put)); err != nil {
		return err
	}
	return put("/usr/bin/nvidia-container-runtime", "#!/bin/sh\nexec /usr/bin/runc \"$@\"\n", 0o755)
}

// furnishPCI writes the simulated PCI bus, which the lab's unit mounts.
func (m *Machine) furnishPCI(put putFunc) error {
	if m.Options.GPUs == 0 {
		return nil
	}
	devices, err := PCI(m.Options.Kind, m.Options.GPUs)
	if err != nil {
		return err
	}
	for name, text := range devices {
		put(labFolder+"/pci/sys/"+name, text, 0o444)
	}
	return nil
}

// furnishUnit writes the lab's unit, and enables it.
func (m *Machine) furnishUnit(put putFunc) error {
	unit := &strings.Builder{}
	unit.WriteString(`[Unit]
Description=Make a machine of this container
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
`)
	// systemd-nspawn mounts the first version's controllers read-only. They are the host's own, and
	// containers need them.
	for _, controllers := range append(firstControllers(), "") {
		hierarchy := filepath.Join(cgroupRoot, controllers)
		fmt.Fprintf(unit, "ExecStart=-/usr/bin/mount -o remount,rw,bind %s\n", hierarchy)
	}

	unit.WriteString(m.kubeletBoot())
	if m.Options.GPUs > 0 {
		fmt.Fprintf(unit, "ExecStart=/usr/bin/mount --bind %s/pci/sys /sys/bus/pci/devices\n", labFolder)
	}
	put(labUnit, unit.String(), 0o644)

	link := m.path("upper") + labUnitWanted
	err := os.MkdirAll(filepath.Dir(link), 0o755)
	if err == nil {
		err = os.Symlink("../gpuadm-lab.service", link)
	}
	if err != nil {
		return fmt.Errorf("cannot furnish the host: %w", err)
	}
	return nil
}

// maskUnits masks units that would disturb a test. An empty unit is a masked one: systemd.unit(5).
func (m *Machine) maskUnits(put putFunc) {
	// What Debian does by the clock would change a host in the midst of a test: at midnight, at
	// six, at eighteen.
	units := []string{"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"}

	// All hosts share one kernel: the udev of each would handle the devices of all, at each boot of
	// each. Only a network needs it, since systemd-networkd waits until udev has seen an interface;
	// and the kernel shows the events of interfaces only to their own host.
	if m.Options.Wire != nil {
		put("/etc/systemd/system/systemd-udev-trigger.service.d/net.conf", `[Service]
ExecStart=
ExecStart=-udevadm trigger --type=devices --action=add --subsystem-match=net
`, 0o644)
	} else {
		units = append(units,
			"systemd-udevd.service", "systemd-udevd-control.socket",
			"systemd-udevd-kernel.socket", "systemd-udev-trigger.service")
	}

	for _, unit := range units {
		put("/etc/systemd/system/"+unit, "", 0o644)
	}
}

// putFunc writes a file into the host's own layer.
type putFunc = func(name, text string, mode os.FileMode) error

// putter returns a function that writes files into the host's own layer while it is not mounted.
// Once a file could not be written, it writes no more and returns that error.
func (m *Machine) putter() putFunc {
	var failed error
	return func(name, text string, mode os.FileMode) error {
		if failed != nil {
			return failed
		}

		place := m.path("upper") + name
		err := os.MkdirAll(filepath.Dir(place), 0o755)
		if err == nil {
			err = os.WriteFile(place, []byte(text), mode)
		}
		if err != nil {
			failed = fmt.Errorf("cannot furnish the host: %w", err)
		}
		return failed
	}
}

// firstControllers are the first version's hierarchies this process is in, as systemd-nspawn names
// their folders.
func firstControllers() []string {
	var list []string
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(line, ":", 3)
		if len(part) == 3 && part[1] != "" {
			list = append(list, strings.TrimPrefix(part[1], "name="))
		}
	}

	return list
}
