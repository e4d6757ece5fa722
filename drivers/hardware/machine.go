// SPDX-License-Identifier: Apache-2.0

// Package hardware describes a machine for the choice of a driver, its GPUs and its system, and
// compares driver versions.
package hardware

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Machine is what the choice of a driver depends on.
type Machine struct {
	GPUs      []Device          // by PCI address; nil where they cannot be seen, as in an image that is being made
	Switches  []Device          // NVSwitches
	ID        string            // os-release's: ubuntu
	Version   string            // VERSION_ID: 24.04
	Like      []string          // ID_LIKE
	Name      string            // PRETTY_NAME
	Arch      string            // amd64, arm64
	Kernels   []string          // releases of the kernels that the modules are for
	Cloud     string            // aws, azure, gce; "" if unknown or none
	Instance  string            // the cloud's type of instance, g4dn.xlarge; "" if unknown or no cloud
	RDMA      bool              // a network card behind PCIe reads and writes the GPUs' memory
	VGPU      *facts.VGPU       // what a virtual GPU reports of the host's driver; nil if no GPU is virtual
	Owner     string            // the driver's owner, if signs on the machine name one; "" = none
	OnDisk    map[string]Module // by kernel: the module nvidia that it has
	Signed    []string          // packages of signed modules that are available for the kernels; nil where that is not known
	Running   string            // the kernel that runs; "" in a root folder
	Fallback  string            // facts.Kernel's
	Day       string            // by the machine's clock: 2026-11-22; "" where it has none
	Compilers map[string]string // by kernel, where known: the package of the compiler that it was built with

	Shared []facts.SharedModules // modules that were built once for the kernels, by the list of the mirror; nil where none is known
	Trust  facts.Trust           // whose modules the kernels load

	RefusesBuilds bool // the kernel loads no modules that are built here: under Secure Boot, without an enrolled key
}

// Module is a kernel module nvidia on disk.
type Module struct {
	Version string
	DKMS    bool // built here
	Shared  bool // built once for this kernel, and brought by their package
	Flavour string
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
		ID: f.OS.ID, Version: f.OS.Version, Like: f.OS.Like, Name: f.OS.Name,
		Arch: f.Arch, Kernels: f.Kernel.Targets(f.Live), Cloud: f.Cloud.Name, Instance: instanceType, RDMA: f.RDMA, VGPU: f.VGPU, Signed: f.Signed, Shared: f.Shared, Day: f.Day,
	}
	if f.GPUs != nil {
		m.GPUs = []Device{}
	}
	if o := f.DriverOwner; o != nil {
		m.Owner = o.String()
	}
	if f.Live {
		m.Running, m.Fallback = f.Kernel.Running, f.Kernel.Fallback()
	}
	if f.Modules != nil {
		m.Trust = f.Modules.Trust
		m.RefusesBuilds = f.Live && f.Modules.Trust.Demands() && !f.Modules.Trust.Trusts(f.Modules.Trust.Build)
		m.Compilers = compilers(*f.Modules)
		m.OnDisk = map[string]Module{}
		for _, k := range f.Modules.Kernels {
			if k.Nvidia == nil {
				continue
			}
			on := Module{Version: k.Nvidia.Version, Flavour: k.Nvidia.Flavour(), Shared: k.Nvidia.Shared() && k.Nvidia.Kernel() == k.Kernel}
			// dkms.conf(8) of NVIDIA's packages says updates, and distributions put it there
			on.DKMS = !on.Shared && (strings.Contains(k.Nvidia.Path, "/updates/") || strings.Contains(k.Nvidia.Path, "/extra/"))
			m.OnDisk[k.Kernel] = on
		}
	}
	if f.Image != nil {
		m.Trust = *f.Image
	}
	for _, p := range f.GPUs {
		d := Device{Address: p.Address, ID: strings.ToLower(p.Device), Model: p.Model}
		_, d.Board, _ = strings.Cut(p.Subsystem, ":")
		switch {
		case p.Display():
			m.GPUs = append(m.GPUs, d)
		case strings.HasPrefix(p.Class, "0680"): // "bridge, other"
			m.Switches = append(m.Switches, d)
		}
	}
	return m
}

// compilerName returns the compiler that built a kernel, which is also its package's name, where it
// is Debian's or Ubuntu's: gcc-12 of gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, gcc-13 of
// x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0. Other distributions build with
// plain gcc, which is among the tools.
func compilerName(text string) string {
	name, by, _ := strings.Cut(text, " (")
	if arch, plain, found := strings.Cut(name, "-linux-gnu-"); found && pattern.Only(arch, pattern.Lower+pattern.Digits+"_") {
		name = plain
	}
	if number, is := strings.CutPrefix(name, "gcc-"); is && pattern.Only(number, pattern.Digits) && (strings.HasPrefix(by, "Debian ") || strings.HasPrefix(by, "Ubuntu ")) {
		return name
	}
	return ""
}

// compilers maps kernels to the packages of the compilers that built them.
func compilers(m facts.Modules) map[string]string {
	var found map[string]string
	for _, k := range m.Kernels {
		if name := compilerName(k.Compiler); name != "" {
			if found == nil {
				found = map[string]string{}
			}
			found[k.Kernel] = name
		}
	}
	return found
}
