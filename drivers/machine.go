// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
)

// Machine is what the choice of a driver depends on.
type Machine struct {
	GPUs      []Device          // by PCI address; nil where nobody could look, as in an image that is being made
	Switches  []Device          // NVSwitches
	ID        string            // os-release's: ubuntu
	Version   string            // VERSION_ID: 24.04
	Like      []string          // ID_LIKE
	Name      string            // PRETTY_NAME
	Arch      string            // amd64, arm64
	Kernels   []string          // releases of the kernels that the modules are for
	Instance  string            // the cloud's type of instance, g4dn.xlarge; "" if unknown or no cloud
	Owner     string            // who looks after the driver, if signs on the machine say so; "" = nobody
	Compilers map[string]string // by kernel, where known: the package of the compiler that it was built with
}

// Device is one PCI function.
type Device struct {
	Address string // 0000:17:00.0
	ID      string // 2330
	Model   string // H100 80GB; "" if unknown
}

// MachineOf takes out of the facts what a driver's choice depends on.
func MachineOf(f facts.Facts, instanceType string) Machine {
	m := Machine{
		ID: f.OS.ID, Version: f.OS.Version, Like: f.OS.Like, Name: f.OS.Name,
		Arch: f.Arch, Kernels: targets(f), Instance: instanceType,
	}
	if f.GPUs != nil {
		m.GPUs = []Device{}
	}
	if o := f.DriverOwner; o != nil {
		m.Owner = o.Name + " (" + o.Why + ")"
	}
	if f.Modules != nil {
		m.Compilers = compilers(*f.Modules)
	}
	for _, p := range f.GPUs {
		d := Device{Address: p.Address, ID: strings.ToLower(p.Device), Model: p.Model}
		switch {
		case p.Display():
			m.GPUs = append(m.GPUs, d)
		case strings.HasPrefix(p.Class, "0680"): // "bridge, other"
			m.Switches = append(m.Switches, d)
		}
	}
	return m
}

// compilerName is how Debian and Ubuntu call the compilers that their kernels are built with, and the packages of them:
// gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0. What others
// build with is plain gcc, which is among the tools.
var compilerName = regexp.MustCompile(`^(?:[a-z0-9_]+-linux-gnu-)?(gcc-[0-9]+) \((?:Debian|Ubuntu) `)

// compilers are the packages of the compilers that kernels were built with, by kernel.
func compilers(m facts.Modules) map[string]string {
	var found map[string]string
	for _, k := range m.Kernels {
		if name := compilerName.FindStringSubmatch(k.Compiler); name != nil {
			if found == nil {
				found = map[string]string{}
			}
			found[k.Kernel] = name[1]
		}
	}
	return found
}

// targets lists the kernels that need modules: the one that runs and those newer than it, of which one may be booted
// next. Nobody can tell which one of a root folder will be, so there it is all of them.
func targets(f facts.Facts) []string {
	if !f.Live {
		return slices.Clone(f.Kernel.Installed)
	}
	if i := slices.Index(f.Kernel.Installed, f.Kernel.Running); i >= 0 {
		return slices.Clone(f.Kernel.Installed[:i+1])
	}
	if len(f.Kernel.Installed) > 0 {
		return slices.Clone(f.Kernel.Installed[:1]) // a container, or the running kernel's package was removed
	}
	if f.Kernel.Running != "" {
		return []string{f.Kernel.Running}
	}
	return nil
}
