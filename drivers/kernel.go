// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// KernelSide returns the desired state of the modules. known is false while the version is not
// known: for a branch it is the newest version that its packages have installed.
func (c Choice) KernelSide(s spec.Driver, f facts.Facts) (k modules.KernelSide, known bool) {
	k = modules.KernelSide{
		Version:    c.Version,
		Flavour:    c.Flavour,
		Build:      c.build(),
		Kernels:    c.kernels(f),
		Image:      f.Image,
		Parameters: map[string]string{},
		Companions: []string{"nvidia-uvm", "nvidia-modeset"},
	}

	if s.Peermem {
		k.Companions = append(k.Companions, modules.Peermem)
	}
	if s.GDS {
		k.Companions = append(k.Companions, modules.Storage)
	}
	maps.Copy(k.Parameters, c.Parameters)
	maps.Copy(k.Parameters, s.Parameters)
	c.addFabricModules(s, f, &k)

	if f.Modules == nil {
		return k, k.Version != ""
	}
	if k.Version == "" {
		k.Version = c.installedVersion(*f.Modules)
	}
	if k.Build == "dkms" {
		k.Waiting = c.waitingForHeaders(f, k)
	}
	return k, k.Version != ""
}

// kernels lists the kernels that get the modules.
func (c Choice) kernels(f facts.Facts) []string {
	skipped := func(kernel string) bool { return slices.Contains(c.Skipped, kernel) }
	return slices.DeleteFunc(f.Kernel.Targets(f.Live), skipped)
}

// build says who builds the modules, as KernelSide.Build has it.
func (c Choice) build() string {
	switch {
	case c.Shared:
		return "shared"
	case c.Precompiled:
		return "precompiled"
	}
	return "dkms"
}

// installedVersion returns the version of the branch whose libraries are installed, "" if none is.
func (c Choice) installedVersion(m facts.Modules) string {
	installed := ""
	for _, lib := range m.Libraries {
		if hardware.InBranch(lib.Version, c.Branch) {
			installed = lib.Version
		}
	}

	return installed
}

// waitingForHeaders lists the kernels that have no headers and may stay without the driver for now.
func (c Choice) waitingForHeaders(f facts.Facts, k modules.KernelSide) []string {
	var waiting []string
	for _, kernel := range k.Kernels {
		on, known := f.Modules.Of(kernel)
		if known && !on.Headers && c.mayWait(f, k, kernel) {
			waiting = append(waiting, kernel)
		}
	}

	return waiting
}

// hasDriver says whether a kernel has the driver's modules, which stay, and would load them.
func (c Choice) hasDriver(f facts.Facts, k modules.KernelSide, kernel string) bool {
	if f.Modules == nil || f.Image != nil || k.Version == "" {
		return false
	}

	on, _ := f.Modules.Of(kernel)
	m := on.Nvidia
	switch {
	case m == nil || m.Kernel() != kernel:
		return false
	case m.Version != k.Version || m.Flavour() != c.Flavour:
		return false
	case facts.IsShared(m.Path) && !c.Shared:
		return false // they go with their package
	}

	return !f.Modules.Trust.Demands() || f.Modules.Trust.Trusts(m.Signer)
}

// mayWait says whether a kernel may stay without the driver for now: it does not run, and another
// kernel has the driver.
func (c Choice) mayWait(f facts.Facts, k modules.KernelSide, kernel string) bool {
	if !f.Live || kernel == f.Kernel.Running || c.hasDriver(f, k, kernel) {
		return false
	}
	for _, other := range f.Kernel.Installed {
		if c.hasDriver(f, k, other) {
			return true
		}
	}

	return false
}

// Spared returns packages for building modules that gpuadm does not require. asFound are for
// kernels that have the driver's modules: nothing is built for them; and for kernels whose headers
// are on the disk, whatever brought them: an own kernel, Proxmox VE, another vendor. ifThere are
// for kernels that do not run while another kernel has the driver: gpuadm installs them if a
// source has them.
func (c Choice) Spared(s spec.Driver, f facts.Facts) (asFound, ifThere []string) {
	k, _ := c.KernelSide(s, f)
	allHave := len(k.Kernels) > 0
	for _, kernel := range k.Kernels {
		allHave = allHave && c.hasDriver(f, k, kernel)
	}

	for _, m := range c.Members {
		if m.Role != "headers" && m.Role != "compiler" && m.Role != "kernel-modules" {
			continue
		}

		unneeded := m.Role != "kernel-modules" && c.hasDriver(f, k, m.PerKernel)
		unneeded = unneeded || m.Role == "headers" && hasHeaders(f, m.PerKernel)
		if m.PerKernel == "" {
			unneeded = allHave
		}
		switch {
		case unneeded:
			asFound = append(asFound, m.Name)
		case m.PerKernel != "" && c.mayWait(f, k, m.PerKernel):
			ifThere = append(ifThere, m.Name)
		}
	}

	return asFound, ifThere
}

// hasHeaders says whether modules can be built for a kernel.
func hasHeaders(f facts.Facts, kernel string) bool {
	if f.Modules == nil {
		return false
	}
	on, known := f.Modules.Of(kernel)
	return known && on.Headers
}

// otherKernel says whether the modules are only for kernels that do not run, as in a container, or
// after the running kernel's package was removed. The boot of such a kernel loads the modules, and
// starts the daemons that need them.
func otherKernel(f facts.Facts) bool {
	if !f.Live {
		return false
	}
	kernels := f.Kernel.Targets(true)
	return len(kernels) > 0 && !slices.Contains(kernels, f.Kernel.Running)
}

// NextKernel warns before a reboot: boot loaders start the newest installed kernel, and a kernel
// without a module nvidia, or with a module of another version than the rest, boots without the
// GPUs. version is the version that the module must have, "" for any; c says what a kernel without
// a module needs. The result is "" if the next kernel has what it needs.
func NextKernel(version string, m facts.Modules, c Choice) string {
	if len(m.Kernels) == 0 {
		return ""
	}

	next := m.Kernels[0]
	problem := next.Problem
	switch {
	case problem != "":
	case next.Nvidia == nil:
		problem = c.whyNoModule(next)
	case next.Nvidia.Kernel() != next.Kernel:
		problem = "its module nvidia is built for " + next.Nvidia.Kernel()
	case version != "" && next.Nvidia.Version != version:
		problem = "its module nvidia is " + next.Nvidia.Version
	case len(next.Missing) > 0:
		problem = "firmware is missing: " + strings.Join(next.Missing, ", ")
	}

	if problem == "" {
		return ""
	}
	return fmt.Sprintf("the next boot starts kernel %s, without the GPUs: %s", next.Kernel, problem)
}

// whyNoModule says why a kernel has no module nvidia, and what to do; "" if the driver's owner may
// install it after the boot, as on Container-Optimized OS.
func (c Choice) whyNoModule(next facts.KernelModules) string {
	switch {
	case c.Owner != "":
		return ""
	case len(next.Unlisted) > 0:
		return fmt.Sprintf("it has %s, and depmod does not know of it: run depmod %s", next.Unlisted[0], next.Kernel)
	case c.Shared:
		build := "have " + mirrorModules(next.Kernel) + " build it where the mirror is written"
		return "it has no module nvidia: " + build + ", then run " + trouble.Command("apply")
	case c.Precompiled:
		return "it has no module nvidia: install " + c.moduleSource(next.Kernel)
	case next.Headers:
		return "no module nvidia is built for it: run " + trouble.Command("apply") + ", which has it built"
	}
	install := "install " + c.moduleSource(next.Kernel) + ", then run " + trouble.Command("apply")
	return "it has no module nvidia, and its headers are not installed: " + install
}

// moduleSource names the package that gives a kernel its module: the distribution's signed modules,
// or the headers that DKMS builds against. Where the choice names no package for that kernel, it
// describes both.
func (c Choice) moduleSource(kernel string) string {
	role := "headers"
	if c.Precompiled {
		role = "module"
	}

	for _, m := range c.Members {
		if m.PerKernel == kernel && m.Role == role {
			return m.Name
		}
	}

	return "its headers, or the package of its signed modules"
}

// ModuleProblems lists, in sentences, what is wrong with the kernel modules. c says what a kernel
// without a module needs.
func ModuleProblems(f facts.Facts, m facts.Modules, c Choice) []string {
	var problems []string
	running := f.Kernel.Running

	if mismatch := m.Mismatch(); mismatch != "" {
		until := "until the module is reloaded or the machine rebooted"
		if on, _ := m.Of(running); on.Nvidia != nil && on.Nvidia.Version == m.Version {
			until = "after a reboot too, since the module on disk is " + m.Version + " as well: install both in one version"
		}
		problems = append(problems, mismatch+": NVML says \"Driver/library version mismatch\" "+until)
	}

	if onDisk := m.Reload(running); onDisk != "" {
		problem := fmt.Sprintf("the module nvidia %s is loaded, and %s is on disk: reload it or reboot", m.Version, onDisk)
		problems = append(problems, problem)
	}

	if otherKernel(f) && m.Version == "" {
		targets := strings.Join(f.Kernel.Targets(f.Live), ", ")
		problem := fmt.Sprintf("kernel %s runs and is not installed: the driver is for %s, and works after that kernel is booted", running, targets)
		problems = append(problems, problem)
	}

	for _, taken := range m.Taken {
		problems = append(problems, taken.String())
	}

	wanted := m.Version
	for _, lib := range m.Libraries {
		wanted = lib.Version // programs load the library, which needs a module of its own version
	}
	if wanted == "" {
		return problems // the driver is not installed yet: the plan says what is missing
	}
	if problem := NextKernel(wanted, m, c); problem != "" {
		problems = append(problems, problem)
	}
	return problems
}
