// SPDX-License-Identifier: Apache-2.0

// Package hardware describes a machine for the choice of a driver, its GPUs and its system, and
// compares driver versions.
package hardware

import (
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Machine is what the choice of a driver depends on.
type Machine struct {
	GPUs     []Device // by PCI address; nil where they cannot be seen, as in a new image
	Switches []Device // NVSwitches

	ID      string   // os-release's: ubuntu
	Version string   // VERSION_ID: 24.04
	Like    []string // ID_LIKE
	Name    string   // PRETTY_NAME
	Arch    string   // amd64, arm64
	Day     string   // by the machine's clock: 2026-11-22; "" where it has none
	Owner   string   // the driver's owner, if signs on the machine name one; "" = none

	Cloud    string      // aws, azure, gce; "" if unknown or none
	Instance string      // the cloud's type of instance, g4dn.xlarge; "" if unknown or no cloud
	RDMA     bool        // a network card behind PCIe reads and writes the GPUs' memory
	MIG      bool        // the spec partitions GPUs
	Whole    bool        // it partitions some, and leaves others whole
	VGPU     *facts.VGPU // what a virtual GPU reports of the host's driver; nil if no GPU is virtual

	Kernels   []string          // releases of the kernels that the modules are for
	Running   string            // the kernel that runs; "" in a root folder
	Fallback  string            // facts.Kernel's
	OnDisk    map[string]Module // by kernel: the module nvidia that it has
	Compilers map[string]string // by kernel, where known: the package of the compiler that built it

	// Signed are the packages of signed modules that are available for the kernels; nil where that
	// is not known.
	Signed []string
	// Shared are the modules that were built once for the kernels, by the list of the mirror; nil
	// where none is known.
	Shared []SharedModules
	Trust  facts.Trust // whose modules the kernels load
	// RefusesBuilds says that the kernel loads no modules that are built here: under Secure Boot,
	// without an enrolled key.
	RefusesBuilds bool
}

// Module is a kernel module nvidia on disk.
type Module struct {
	Version string
	DKMS    bool // built here
	Shared  bool // built once for this kernel, and installed from a package
	Flavour string
}

// SharedModules are the driver's modules for one kernel in the list of a mirror.
type SharedModules struct {
	Package string
	Kernel  string
	Version string // of the driver
	Flavour string
	Signer  modinfo.Key
	Problem string // why this machine's kernel would not load them
	Failure string // the compiler's first error, where they did not build: then there is no package
}

// Device is one PCI function.
type Device struct {
	Address string // 0000:17:00.0
	ID      string // 2330
	Board   string // the subsystem's device, 1733; "" if unknown
	Model   string // H100 80GB; "" if unknown
}

// MachineOf returns the facts that the choice of a driver depends on.
func MachineOf(f facts.Facts, instanceType string) Machine {
	m := Machine{
		ID:       f.OS.ID,
		Version:  f.OS.Version,
		Like:     f.OS.Like,
		Name:     f.OS.Name,
		Arch:     f.Arch,
		Day:      f.Day,
		Cloud:    f.Cloud.Name,
		Instance: instanceType,
		RDMA:     f.RDMA,
		VGPU:     f.VGPU,
		Kernels:  f.Kernel.Targets(f.Live),
		Signed:   f.Signed,
	}
	if f.DriverOwner != nil {
		m.Owner = f.DriverOwner.String()
	}
	if f.Live {
		m.Running = f.Kernel.Running
		m.Fallback = f.Kernel.Fallback()
	}
	if f.Modules != nil {
		trust := f.Modules.Trust
		m.Trust = trust
		m.RefusesBuilds = f.Live && trust.Demands() && !trust.Trusts(trust.Build)
		m.Compilers = compilers(*f.Modules)
		m.OnDisk = onDisk(*f.Modules)
	}

	if f.Image != nil {
		m.Trust = *f.Image
	}
	m.addDevices(f)
	return m
}

// onDisk maps kernels to the module nvidia that they have.
func onDisk(m facts.Modules) map[string]Module {
	found := map[string]Module{}
	for _, k := range m.Kernels {
		file := k.Nvidia
		if file == nil {
			continue
		}

		module := Module{
			Version: file.Version,
			Flavour: file.Flavour(),
			Shared:  facts.IsShared(file.Path) && file.Kernel() == k.Kernel,
		}
		if !module.Shared {
			module.DKMS = isOfDKMS(file.Path)
		}
		found[k.Kernel] = module
	}

	return found
}

// isOfDKMS reports whether a module's file is where DKMS puts modules: dkms.conf(8) of NVIDIA's
// packages says updates, and distributions use this folder or extra itself. Packages of ready-made
// modules for dnf have a folder of their own below extra: extra/drivers/video/nvidia.
// Sources: override_dest_module_location in dkms.in of https://github.com/dkms-project/dkms;
// kmod_module_path in kmod-nvidia.spec of https://github.com/NVIDIA/yum-packaging-precompiled-kmod.
func isOfDKMS(file string) bool {
	return strings.Contains(file, "/updates/") || path.Base(path.Dir(file)) == "extra"
}

// addDevices adds the GPUs, if they can be seen, and the NVSwitches.
func (m *Machine) addDevices(f facts.Facts) {
	if f.GPUs != nil {
		m.GPUs = []Device{}
	}

	for _, p := range f.GPUs {
		_, board, _ := strings.Cut(p.Subsystem, ":")
		device := Device{
			Address: p.Address,
			ID:      strings.ToLower(p.Device),
			Board:   board,
			Model:   p.Model,
		}
		switch {
		case p.Display():
			m.GPUs = append(m.GPUs, device)
		case strings.HasPrefix(p.Class, "0680"): // "bridge, other"
			m.Switches = append(m.Switches, device)
		}
	}
}

// compilers maps kernels to the packages of the compilers that built them; nil if none is known.
func compilers(m facts.Modules) map[string]string {
	var found map[string]string
	for _, k := range m.Kernels {
		name := compilerName(k.Compiler)
		if name == "" {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[k.Kernel] = name
	}

	return found
}

// compilerName returns the compiler that built a kernel, which is also its package's name, where it
// is Debian's or Ubuntu's: gcc-12 of gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, gcc-13 of
// x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0. Other distributions build with
// plain gcc, which is among the tools.
func compilerName(text string) string {
	name, vendor, _ := strings.Cut(text, " (")
	if !strings.HasPrefix(vendor, "Debian ") && !strings.HasPrefix(vendor, "Ubuntu ") {
		return ""
	}

	arch, bare, found := strings.Cut(name, "-linux-gnu-")
	if found && pattern.Only(arch, pattern.Lower+pattern.Digits+"_") {
		name = bare
	}
	number, isGCC := strings.CutPrefix(name, "gcc-")
	if !isGCC || !pattern.Only(number, pattern.Digits) {
		return ""
	}
	return name
}
