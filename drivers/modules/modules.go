// SPDX-License-Identifier: Apache-2.0

// Package modules wants the driver's kernel modules and the modules that are loaded with them,
// checked by their files for each kernel; and the driver's libraries and programs that a node
// needs.
package modules

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// KernelSide is the desired state of the driver's kernel modules.
type KernelSide struct {
	Version    string            // 580.95.05
	Flavour    string            // open, proprietary
	Build      string            // precompiled, shared, dkms
	Kernels    []string          // those that must have the modules; never empty
	Waiting    []string          // those of them that get the modules once they have headers
	Parameters map[string]string // of the module nvidia

	// Companions are modules that are loaded with nvidia: nvidia-uvm, nvidia-modeset,
	// nvidia-peermem, nvidia-fs, ib_umad.
	Companions []string
	Extra      []string // packages with those companions that belong to the kernel

	// Image is the trust of the machines that the image is for, where they boot with Secure Boot;
	// nil: the machine's own counts.
	Image *facts.Trust
	// Memory knows what files of modules said; nil remembers nothing.
	Memory *recall.Memory

	// Remade says that the spec asks for MIG: gpuadm partitions the GPUs again after the module is
	// reloaded.
	Remade bool
}

// Settings returns the wants that come before the driver's packages: nouveau blacklisted,
// parameters set, and a check that the kernel would load what gpuadm builds.
func Settings(k KernelSide) ([]converge.Want, error) {
	conf, err := ModprobeConf(k.Parameters)
	if err != nil {
		return nil, err
	}
	load, err := modulesLoad(k.Companions)
	if err != nil {
		return nil, err
	}

	wants := []converge.Want{trusted(k), buildable(k)}
	wants = append(wants, things.Folders("/etc/modprobe.d", "holds modprobe's settings")...)
	wants = append(wants, things.Exact(ModprobeFile, conf, 0o644,
		"keeps nouveau and nova away from the GPUs, and sets the parameters of the module nvidia"))
	wants = append(wants, things.Folders("/etc/modules-load.d", "names what is loaded at boot")...)
	return append(wants, things.Exact(LoadFile, load, 0o644,
		"has the modules loaded at boot, before any container asks for them")), nil
}

// Wants returns the wants that come after the driver's packages: modules of one version for every
// kernel, checked by their files, the initial file systems without nouveau, and the module loaded.
// The order of the Followers matters: the initial file system is made before a module that may wait
// for a reboot.
func Wants(k KernelSide, f facts.Facts, m facts.Modules) ([]converge.Want, error) {
	if len(k.Kernels) == 0 {
		return nil, &trouble.Error{
			What: "cannot install a driver: no kernel is installed that it could be for",
			Try:  []string{"install a kernel first"},
		}
	}

	var wants []converge.Want
	for _, kernel := range k.Kernels {
		wants = append(wants, k.moduleWants(kernel, f)...)
	}
	if slices.ContainsFunc(k.Companions, optional) {
		wants = append(wants, companionFiles(k))
	}
	if slices.Contains(k.Companions, Storage) && k.Build == "dkms" {
		for _, kernel := range k.Kernels {
			wants = append(wants, kmod.DKMSAddOn(Storage, kernel, k.builtBeside,
				"it is loaded with the driver that it was built against, and no other"))
		}
	}

	for _, kernel := range k.Kernels {
		wants = append(wants, kmod.Initramfs(kernel, []string{ModprobeFile},
			"the initial file system knows modprobe's settings"))
	}

	if f.Live && !slices.ContainsFunc(f.GPUs, facts.PCI.Display) {
		return wants, nil // the module does not load without a GPU: ENODEV
	}
	if f.Live && !slices.Contains(k.Kernels, f.Kernel.Running) {
		return append(wants, booted(f, k)), nil
	}
	return append(wants,
		served(k),
		Loaded(f, k),
		things.Resumed(),
	), nil
}

// moduleWants returns the wants for the modules of one kernel: built, where DKMS builds them, and
// on disk.
func (k KernelSide) moduleWants(kernel string, f facts.Facts) []converge.Want {
	file := kmod.ModuleFile(kernel, k.Version, k.Flavour, k.loadableState,
		"the kernel has modules of the driver's version, and would load them")
	build := kmod.DKMS(k.Version, kernel, k.built,
		"builds the modules for the kernel and installs them")

	headers := host.Later{
		Until: "once kernel " + kernel + " has headers to build modules with; if it is booted before, it has no GPUs",
		When:  host.AnotherKernel,
	}
	waiting := slices.Contains(k.Waiting, kernel)
	if waiting {
		build.To = orLater(build.To, headers)
	}
	switch {
	case !f.Live && !f.Baked:
		file.To = orLater(file.To, host.FirstBoot)
	case waiting:
		file.To = orLater(file.To, headers)
	}

	if k.Build != "dkms" {
		return []converge.Want{file}
	}
	return []converge.Want{build, file}
}

// target computes the state to bring a thing to.
type target = func(found converge.State) (converge.State, error)

// orLater defers what is not converged and cannot be made yet, as in a root folder until its first
// boot.
func orLater(to target, later host.Later) target {
	return func(found converge.State) (converge.State, error) {
		want, err := to(found)
		if err == nil && want != found {
			return "", later
		}
		return want, err
	}
}

// booted waits for the boot of a kernel that has the modules, where the running kernel has none:
// its package was removed, and its folder in /lib/modules with it. Until then a driver that it has
// loaded serves, if it has the wanted version.
func booted(f facts.Facts, k KernelSide) converge.Want {
	kernel := kernelWithDriver(f, k)
	look := func(ctx context.Context, v host.View) (string, error) {
		version, flavour := facts.LoadedDriver(v)
		if version == k.Version && (flavour == k.Flavour || flavour == "") {
			return "", nil
		}
		if version == "" {
			if _, err := v.Driver(ctx); err == nil {
				return "", nil
			}
		}

		return "", host.Later{Until: "kernel " + kernel + " is booted", When: host.AfterReboot}
	}

	why := fmt.Sprintf("kernel %s runs and is not installed, so that no driver can be loaded; kernel %s has the driver", f.Kernel.Running, kernel)
	return things.Check("a kernel with the driver runs", look, why)
}

// kernelWithDriver returns the newest kernel with modules of the version, or else the newest that
// is to get them.
func kernelWithDriver(f facts.Facts, k KernelSide) string {
	if f.Modules != nil {
		for _, on := range f.Modules.Kernels {
			if on.Nvidia != nil && on.Nvidia.Version == k.Version {
				return on.Kernel
			}
		}
	}
	return k.Kernels[0]
}

// Loaded wants the loaded module to be the module on disk, whichever version that is.
func Loaded(f facts.Facts, k KernelSide) converge.Want {
	files := []string{ModprobeFile, LoadFile}
	return kmod.Module(f.Kernel.Running, files, k.stateOnDisk, k.Remade,
		"the loaded module is the module on disk")
}

// served refuses to call a machine converged if its loaded module serves some of its GPUs only. It
// judges a module that is not loaded yet, or is to be replaced, after it is loaded.
func served(k KernelSide) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		version, flavour := facts.LoadedDriver(v)
		if !v.Live() || version != k.Version || flavour != k.Flavour {
			return "", nil
		}

		unbound, err := kmod.UnboundGPUs(v)
		if unbound == "" {
			return "", err
		}
		problem := "cannot use all GPUs: " + unbound
		if kernelLog := faults.KernelSays(ctx, v); kernelLog != "" {
			problem += "; " + kernelLog
		}
		return problem + things.OrTry(faults.Of("DRV-008").Fix), err
	}

	return things.Check("every GPU is served", look, "the driver serves all GPUs on the bus",
		"journalctl -k --grep 'NVRM|Xid', for what the driver says about them")
}
