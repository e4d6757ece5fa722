// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// note returns a sentence that an operator should know though it is not a fault: that no driver is
// installed, or that one waits for another kernel.
func (m *Machine) note() string {
	f := m.Facts()
	if m.passesAll() {
		return "vfio-pci holds each GPU of this machine, for virtual machines: neither the driver nor a pod gets one"
	}

	choice, asked, err := drivers.New(nil).Choose(m.spec, f)
	if m.awaitsDriver(f) {
		switch {
		case asked:
			return "no NVIDIA driver is installed: " + trouble.Command("plan") + " shows how to get one"
		case len(m.spec.Sections) > 0:
			return "no NVIDIA driver is installed, and node.toml asks for none: it has no version in [driver]"
		}
		return "no NVIDIA driver is installed, and no node.toml asks for one: " + trouble.Command("init") + " writes a node.toml that does"
	}

	if f.Modules == nil || len(f.Modules.Libraries) == 0 {
		return ""
	}
	if err != nil || !asked {
		return m.nextKernel()
	}
	return drivers.NextKernel(choice.Version, *f.Modules, choice)
}

// nextKernel says that a kernel is installed that the next boot starts, and that it has no module
// nvidia, though the running kernel has one. A driver of another owner may come after the boot.
func (m *Machine) nextKernel() string {
	f := m.Facts()
	running, ok := m.running()
	byHand := f.DriverOwner != nil && f.DriverOwner.Name == facts.OtherOwner
	hasOwner := drivers.New(nil).Other(f).Owner != "" && !byHand
	if !ok || running.Nvidia == nil || hasOwner {
		return ""
	}
	next := f.Modules.Kernels[0]
	if next.Kernel == running.Kernel || next.Nvidia != nil || next.Problem != "" {
		return ""
	}

	text := fmt.Sprintf("the next boot starts kernel %s, which has no module nvidia, and the GPUs are lost then: ", next.Kernel)
	switch {
	case len(next.Unlisted) > 0:
		return text + "sudo depmod " + next.Kernel
	case len(m.dkmsModules()) > 0 && !next.Headers:
		return text + m.Packages().headersOf(next.Kernel)
	case len(m.dkmsModules()) > 0:
		return text + "sudo dkms autoinstall -k " + next.Kernel
	}

	return text + "install the driver's modules for that kernel"
}

// awaitsDriver reports whether the machine has GPUs that no kernel driver holds but the kernel's
// own, nouveau, and nothing of NVIDIA's driver.
func (m *Machine) awaitsDriver(f facts.Facts) bool {
	if len(m.GPUs()) == 0 || f.Modules == nil || f.Driver != nil {
		return false
	}
	if f.Modules.Version != "" || len(f.Modules.Libraries) > 0 {
		return false
	}

	hasModule := func(kernel facts.KernelModules) bool { return kernel.Nvidia != nil }
	isTaken := func(device facts.PCI) bool {
		return slices.ContainsFunc(f.Modules.Taken, func(t facts.Taken) bool {
			return t.Address == device.Address
		})
	}

	isHeld := func(device facts.PCI) bool { return device.Driver != "" && !isTaken(device) }
	return !slices.ContainsFunc(f.Modules.Kernels, hasModule) && !slices.ContainsFunc(m.GPUs(), isHeld)
}

// NVML returns the GPUs that the driver answers for, by PCI address; ok is false where no driver
// answers.
func (m *Machine) NVML() (gpus map[string]host.GPU, ok bool) {
	driver := m.Facts().Driver
	if driver == nil {
		return nil, false
	}
	gpus = map[string]host.GPU{}
	for _, gpu := range driver.GPUs {
		gpus[gpu.Address] = gpu
	}
	return gpus, true
}

// passesAll reports whether each GPU is bound to vfio-pci, which an operator asks for: the module
// nvidia then need not be loaded.
// Sources: https://docs.kernel.org/driver-api/vfio.html;
// https://github.com/cloud-hypervisor/cloud-hypervisor/issues/4353.
func (m *Machine) passesAll() bool {
	isOther := func(device facts.PCI) bool { return device.Driver != "vfio-pci" }
	return len(m.GPUs()) > 0 && !slices.ContainsFunc(m.GPUs(), isOther)
}

// ownDriver reports whether the driver is the machine's, not a container's.
func (m *Machine) ownDriver() bool {
	owner := m.Basics().DriverOwner
	return owner == nil || owner.Name != facts.GPUOperator
}

// driverInstalled reports whether the machine has a GPU, and parts of a driver of its own.
func (m *Machine) driverInstalled() bool {
	modules := m.Basics().Modules
	if !m.ownDriver() || len(m.GPUs()) == 0 || modules == nil {
		return false
	}

	hasFiles := func(kernel facts.KernelModules) bool { return len(kernel.Files) > 0 }
	return len(modules.Libraries) > 0 || len(m.dkmsModules()) > 0 ||
		slices.ContainsFunc(modules.Kernels, hasFiles)
}

// loaded reports whether any sign shows that the module nvidia is loaded.
func (m *Machine) loaded() bool {
	f := m.Facts()
	if f.Driver != nil || f.Modules != nil && f.Modules.Version != "" {
		return true
	}
	isBound := func(device facts.PCI) bool { return device.Driver == "nvidia" }
	return slices.ContainsFunc(m.GPUs(), isBound)
}

// running returns NVIDIA's modules of the running kernel.
func (m *Machine) running() (kernel facts.KernelModules, installed bool) {
	f := m.Facts()
	if f.Modules == nil {
		return facts.KernelModules{}, false
	}
	return f.Modules.Of(f.Kernel.Running)
}

// dkmsModules returns the versions of the driver's modules that DKMS is to build, as NAME/VERSION:
// folders of its tree, dkms(8). The name is nvidia, or another packager's: see facts.Build.
func (m *Machine) dkmsModules() (modules []string) {
	names, _ := m.View.ReadDir(dkmsTree)
	for _, name := range names {
		if !strings.HasPrefix(name, "nvidia") || name == "nvidia-fs" {
			continue // nvidia-fs is GPUDirect Storage's
		}
		versions, _ := m.View.ReadDir(dkmsTree + "/" + name)
		for _, version := range versions {
			module := name + "/" + version
			if strings.Contains(version, ".") && m.has(dkmsTree+"/"+module+"/source") {
				modules = append(modules, module)
			}
		}
	}
	return modules
}

const dkmsTree = "/var/lib/dkms"
