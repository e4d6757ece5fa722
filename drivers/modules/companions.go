// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
)

// Modules that a spec may ask for in addition to the driver's. The first belongs to the driver and
// has its version; DKMS builds the second from a package with a version of its own.
const (
	Peermem = "nvidia-peermem"
	Storage = "nvidia-fs"
)

// optional says whether some installations of the driver do not have a module.
func optional(module string) bool {
	return module == Peermem || module == Storage || slices.Contains(facts.InfinibandModules(), module)
}

// companionFiles checks by their files that each kernel with the driver's modules has the
// companions asked for, since a kernel that does not run cannot load them. It passes a kernel that
// does not have the driver yet.
func companionFiles(k KernelSide) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		for _, kernel := range k.Kernels {
			problem, err := k.infinibandProblem(v, kernel)
			if err != nil || problem != "" {
				return problem, err
			}

			driver, err := k.onDisk(v, kernel)
			if err != nil {
				return "", err
			}
			if driver == nil || driver.Version != k.Version {
				continue
			}
			for _, name := range []string{Peermem, Storage} {
				if !slices.Contains(k.Companions, name) {
					continue
				}

				problem, err := k.companionProblem(v, kernel, name)
				if err != nil {
					return "", err
				}
				if problem != "" {
					return problem + k.companionRemedies(kernel, name), nil
				}
			}
		}
		return "", nil
	}

	const why = "each kernel has the modules that are asked for beside the driver's"
	return things.Check("modules beside the driver's", look, why)
}

// companionRemedies says what to do about a companion that a kernel cannot load. Without -k dkms
// builds for the running kernel: dkms(8).
func (k KernelSide) companionRemedies(kernel, name string) string {
	remedies := ""
	if k.Build == "dkms" {
		const builds = "dkms status, which lists what was built; dkms autoinstall -k %s builds what is missing"
		remedies = things.OrTry(fmt.Sprintf(builds, kernel))
	}

	key := "peermem"
	if name == Storage {
		key = "gds"
	}
	return remedies + things.OrTry("write "+key+" = false in [driver]")
}

// companionProblem says why a kernel cannot load a companion, "" if it can.
func (k KernelSide) companionProblem(v host.View, kernel, name string) (string, error) {
	file, err := facts.ModuleOf(v, kernel, name)
	if err != nil {
		return "", err
	}
	if file == "" {
		return k.missingCompanion(v, kernel, name)
	}

	m, err := modinfo.ReadOnce(k.Memory, v, file)
	if errors.Is(err, fs.ErrNotExist) {
		return k.missingCompanion(v, kernel, name) // modules.dep is older than its removal
	}
	if err != nil {
		return "", err
	}
	if name == Peermem && m.Version != k.Version {
		return fmt.Sprintf("cannot load %s: %[1]s of kernel %s is %s, and the driver %s", name, kernel, m.Version, k.Version), nil
	}
	if k.Image != nil {
		return "", nil // an image's are built again
	}

	why, err := k.fault(v, kernel, m)
	if err != nil || why != "" {
		return fmt.Sprintf("cannot load %s of kernel %s: %s", name, kernel, why), err
	}
	return "", nil
}

// missingCompanion says whether a companion that a kernel does not have is a problem. nvidia-fs is
// none before its package has installed its source: on a machine that has the driver the spec may
// newly ask for gds, and the stage before installs the package.
func (k KernelSide) missingCompanion(v host.View, kernel, name string) (string, error) {
	if name == Storage {
		source, err := sourceVersion(v, Storage)
		if err != nil {
			return "", err
		}
		if source == "" {
			return "", host.Later{Until: "once the package of nvidia-fs is installed"}
		}
		if k.Build == "dkms" {
			return "", nil // kmod.DKMSAddOn builds it when all else is installed
		}
	}
	return fmt.Sprintf("cannot load %s: kernel %s has no module %[1]s", name, kernel), nil
}

// BuiltBeside returns the state of a module that DKMS builds against the driver's. It compares the
// source's version and the times of the two files, since nothing in the module names the driver.
// nvidia-fs takes the checksums of the driver's symbols from the module that it finds
// (create_nv.symvers.sh in https://github.com/NVIDIA/gds-nvidia-fs), and the kernel compares them.
func BuiltBeside(v host.View, name, kernel string) (version string, state converge.State, err error) {
	driver, err := facts.NvidiaModule(v, kernel)
	if err != nil || driver == "" {
		return "", kmod.AddOnFits, err
	}
	version, err = sourceVersion(v, name)
	if err != nil {
		return "", "", err
	}
	if version == "" {
		return "", kmod.AddOnFits, nil
	}
	file, err := facts.ModuleOf(v, kernel, name)
	if err != nil || file == "" {
		return version, kmod.AddOnNotBuilt, err
	}

	built, err := v.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return version, kmod.AddOnNotBuilt, nil
	}
	if err != nil {
		return version, "", err
	}

	driverFile, err := v.Stat(driver)
	if errors.Is(err, fs.ErrNotExist) {
		return version, kmod.AddOnFits, nil
	}
	if err != nil {
		return version, "", err
	}
	if built.Ctime.Before(driverFile.Ctime) {
		return version, kmod.AddOnOld, nil
	}
	return version, kmod.AddOnFits, nil
}

// builtBeside is BuiltBeside and, in an image for Secure Boot, reports a fault of the signature, so
// that DKMS rebuilds the module.
func (k KernelSide) builtBeside(
	v host.View, name, kernel string,
) (version string, state converge.State, err error) {
	version, state, err = BuiltBeside(v, name, kernel)
	if err != nil || k.Image == nil || version == "" || state != kmod.AddOnFits {
		return version, state, err
	}

	file, err := facts.ModuleOf(v, kernel, name)
	if err != nil {
		return version, "", err
	}
	m, err := modinfo.ReadOnce(k.Memory, v, file)
	if err != nil {
		return version, "", err
	}
	problem, err := k.fault(v, kernel, m)
	if problem != "" {
		state = converge.State(problem)
	}
	return version, state, err
}

// sourceVersion returns the newest version of a module's source that a package has installed, "" if
// none has.
func sourceVersion(v host.View, name string) (string, error) {
	names, err := v.ReadDir("/usr/src")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}

	newest := ""
	for _, folder := range names {
		version, ok := strings.CutPrefix(folder, name+"-")
		if ok && (newest == "" || hardware.Compare(version, newest) > 0) {
			newest = version
		}
	}

	return newest, nil
}

// infinibandProblem says what a kernel lacks to manage NVLink 5's switches; "" if nothing. It waits
// for the package with the modules.
func (k KernelSide) infinibandProblem(v host.View, kernel string) (string, error) {
	has, err := facts.HasInfiniband(v, kernel)
	if err != nil {
		return "", err
	}

	for _, name := range facts.InfinibandModules() {
		if slices.Contains(has, name) || !slices.Contains(k.Companions, name) {
			continue
		}

		extra := "linux-modules-extra-" + kernel
		if slices.Contains(k.Extra, extra) {
			_, err := v.Stat("/var/lib/dpkg/info/" + extra + ".md5sums")
			if errors.Is(err, fs.ErrNotExist) {
				return "", host.Later{Until: "once " + extra + " is installed"}
			}
		}

		return fmt.Sprintf("cannot join the GPUs over NVLink: kernel %s has no module %s, by which the switches are managed", kernel, name) +
			things.OrTry("install the InfiniBand drivers for this kernel, of the distribution or of DOCA") +
			things.OrTry(`fabricmanager = "off" in [driver], if another system manages the switches`), nil
	}

	return "", nil
}
