// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/apt"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
)

// inventory is what the packager's database says.
type inventory struct {
	packager string // apt, dnf; "" for none that is known
	audit    packages.Audit
	packages map[string]packages.State
}

// Packages are the packages that are installed, as dpkg or rpm says.
func (m *Machine) Packages() inventory {
	all, _ := m.packages.read(m, "packages", func() (inventory, error) {
		found := inventory{packager: packages.Detect(m.View)}
		p := map[string]packages.Packager{"apt": apt.New(), "dnf": dnf.New()}[found.packager]
		if p == nil {
			return found, nil
		}
		all, err := p.Installed(m.ctx, m.View)
		if err != nil {
			return found, err
		}
		found.packages = all
		found.audit, err = p.Audit(m.ctx, m.View, func() (map[string]packages.State, error) { return all, nil })
		return found, err
	})
	return all
}

// NVML are the GPUs that the driver answers for, by PCI address; ok is false where no driver answers.
func (m *Machine) NVML() (gpus map[string]host.GPU, ok bool) {
	d := m.Facts().Driver
	if d == nil {
		return nil, false
	}
	gpus = map[string]host.GPU{}
	for _, g := range d.GPUs {
		gpus[g.Address] = g
	}
	return gpus, true
}

// ownDriver says whether the driver is the machine's, not one that a container brings along.
func (m *Machine) ownDriver() bool {
	o := m.Facts().DriverOwner
	return o == nil || o.Name != facts.GPUOperator
}

// driverInstalled says whether the machine has parts of a driver of its own, and a GPU for it.
func (m *Machine) driverInstalled() bool {
	mod := m.Facts().Modules
	return m.ownDriver() && len(m.GPUs()) > 0 && mod != nil && (len(mod.Libraries) > 0 || len(m.dkmsVersions()) > 0 ||
		slices.ContainsFunc(mod.Kernels, func(k facts.KernelModules) bool { return len(k.Files) > 0 }))
}

// loaded says whether the module nvidia is loaded, by whatever sign.
func (m *Machine) loaded() bool {
	f := m.Facts()
	return f.Driver != nil || f.Modules != nil && f.Modules.Version != "" ||
		slices.ContainsFunc(m.GPUs(), func(p facts.PCI) bool { return p.Driver == "nvidia" })
}

// running is what the running kernel has of NVIDIA's modules.
func (m *Machine) running() (facts.KernelModules, bool) {
	f := m.Facts()
	if f.Modules == nil {
		return facts.KernelModules{}, false
	}
	return f.Modules.Of(f.Kernel.Running)
}

// dkmsVersions are the versions of NVIDIA's modules that DKMS is to build: the folders of /var/lib/dkms/nvidia, dkms(8).
func (m *Machine) dkmsVersions() []string {
	names, err := m.View.ReadDir("/var/lib/dkms/nvidia")
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.Contains(n, ".") || !m.has("/var/lib/dkms/nvidia/"+n+"/source") })
}

// sinceLoad are the kernel's lines since the module nvidia was last loaded: what the driver said before is over.
// "NVRM: loading NVIDIA UNIX x86_64 Kernel Module 580.95.05": kernel-open/nvidia/nv.c of https://github.com/NVIDIA/open-gpu-kernel-modules.
func (m *Machine) sinceLoad() []string {
	lines := m.Log()
	for i, line := range slices.Backward(lines) {
		if strings.Contains(line, "NVRM: loading NVIDIA UNIX") {
			return lines[i:]
		}
	}
	return lines
}

// said returns the last of the lines that has one of the texts; "" if none has.
func said(lines []string, texts ...string) string {
	for _, line := range slices.Backward(lines) {
		if slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(line, t) }) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
