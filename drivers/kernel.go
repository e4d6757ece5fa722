// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NextKernel warns before a reboot: boot loaders start the newest installed kernel, and a kernel
// without a module nvidia, or with a module of another version than the rest, boots without the
// GPUs. version is the version that the module must have, "" for any; c says what a kernel without
// a module needs. The result is "" if the next kernel has what it needs.
func NextKernel(version string, m facts.Modules, c Choice) string {
	if len(m.Kernels) == 0 {
		return ""
	}
	next := m.Kernels[0]
	var problem string
	switch {
	case next.Problem != "":
		problem = next.Problem
	case next.Nvidia == nil && c.Owner != "": // the owner may install it after the boot, as on Container-Optimized OS
		return ""
	case next.Nvidia == nil && len(next.Unlisted) > 0:
		problem = fmt.Sprintf("it has %s, and depmod does not know of it: run depmod %s", next.Unlisted[0], next.Kernel)
	case next.Nvidia == nil && c.Shared:
		problem = "it has no module nvidia: have " + mirrorModules(next.Kernel) + " build it where the mirror is written, then run " + trouble.Command("apply")
	case next.Nvidia == nil && c.Precompiled:
		problem = "it has no module nvidia: install " + c.brings(next.Kernel)
	case next.Nvidia == nil && next.Headers:
		problem = "no module nvidia is built for it: run " + trouble.Command("apply") + ", which has it built"
	case next.Nvidia == nil:
		problem = "it has no module nvidia, and its headers are not installed: install " + c.brings(next.Kernel) + ", then run " + trouble.Command("apply")
	case next.Nvidia.Kernel() != next.Kernel:
		problem = "its module nvidia is built for " + next.Nvidia.Kernel()
	case version != "" && next.Nvidia.Version != version:
		problem = "its module nvidia is " + next.Nvidia.Version
	case len(next.Missing) > 0:
		problem = "firmware is missing: " + strings.Join(next.Missing, ", ")
	default:
		return ""
	}
	return fmt.Sprintf("the next boot starts kernel %s, without the GPUs: %s", next.Kernel, problem)
}

// brings names the package that gives a kernel its module: the distribution's signed modules, or
// the headers that DKMS builds against. Where the choice names no package for that kernel, it
// describes both.
func (c Choice) brings(kernel string) string {
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
func ModuleProblems(f facts.Facts, m facts.Modules, c Choice) (sentences []string) {
	if s := m.Mismatch(); s != "" {
		until := "until the module is reloaded or the machine rebooted"
		if k, _ := m.Of(f.Kernel.Running); k.Nvidia != nil && k.Nvidia.Version == m.Version {
			until = "after a reboot too, since the module on disk is " + m.Version + " as well: install both in one version"
		}
		sentences = append(sentences, s+": NVML says \"Driver/library version mismatch\" "+until)
	}
	if v := m.Reload(f.Kernel.Running); v != "" {
		sentences = append(sentences, fmt.Sprintf("the module nvidia %s is loaded, and %s is on disk: reload it or reboot", m.Version, v))
	}
	if otherKernel(f) && m.Version == "" {
		sentences = append(sentences, fmt.Sprintf("kernel %s runs and is not installed: the driver is for %s, and works after that kernel is booted", f.Kernel.Running, strings.Join(f.Kernel.Targets(f.Live), ", ")))
	}
	if len(m.Nouveau) > 0 {
		sentences = append(sentences, "nouveau holds "+strings.Join(m.Nouveau, ", "))
	}
	wanted := m.Version // what programs load decides which module is the right one
	for _, lib := range m.Libraries {
		wanted = lib.Version
	}
	if s := NextKernel(wanted, m, c); s != "" && wanted != "" { // before the driver is installed, the plan says it all
		sentences = append(sentences, s)
	}
	return sentences
}

// Spared returns packages for building modules that gpuadm does not require. asFound are for
// kernels that have the driver's modules: nothing is built for them. ifThere are for kernels that
// do not run while another kernel has the driver: gpuadm installs them if a source has them.
func (c Choice) Spared(s spec.Driver, f facts.Facts) (asFound, ifThere []string) {
	k, _ := c.KernelSide(s, f)
	every := len(k.Kernels) > 0
	for _, kernel := range k.Kernels {
		every = every && c.has(f, k, kernel)
	}
	for _, m := range c.Members {
		switch {
		case m.Role != "headers" && m.Role != "compiler" && m.Role != "kernel-modules":
		case m.PerKernel == "" && every, m.PerKernel != "" && m.Role != "kernel-modules" && c.has(f, k, m.PerKernel):
			asFound = append(asFound, m.Name)
		case m.PerKernel != "" && c.waits(f, k, m.PerKernel):
			ifThere = append(ifThere, m.Name)
		}
	}
	return asFound, ifThere
}

// has says whether a kernel has the driver's modules, which stay, and would load them.
func (c Choice) has(f facts.Facts, k modules.KernelSide, kernel string) bool {
	if f.Modules == nil || f.Image != nil || k.Version == "" {
		return false
	}
	on, _ := f.Modules.Of(kernel)
	t, m := f.Modules.Trust, on.Nvidia
	return m != nil && (c.Shared || !m.Shared()) && m.Version == k.Version && m.Flavour() == c.Flavour && m.Kernel() == kernel && (!t.Demands() || t.Trusts(m.Signer))
}

// waits says whether a kernel may stay without the driver for now: it does not run, and another
// kernel has the driver.
func (c Choice) waits(f facts.Facts, k modules.KernelSide, kernel string) bool {
	return f.Live && kernel != f.Kernel.Running && !c.has(f, k, kernel) &&
		slices.ContainsFunc(f.Kernel.Installed, func(o string) bool { return c.has(f, k, o) })
}
