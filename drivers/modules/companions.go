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
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
)

// Modules that a spec may ask for beside the driver's. The first belongs to the driver and has its
// version; DKMS builds the second from a package with a version of its own.
const (
	Peermem = "nvidia-peermem"
	Storage = "nvidia-fs"
)

// beside says whether a module is optional: not every installation of the driver has it.
func beside(module string) bool {
	return module == Peermem || module == Storage || slices.Contains(facts.InfinibandModules(), module)
}

// companionFiles checks by their files that each kernel with the driver's modules has the
// companions asked for, since a kernel that does not run cannot load them. It passes a kernel that
// does not have the driver yet.
func companionFiles(k KernelSide) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		for _, kernel := range k.Kernels {
			if problem, err := infinibandFiles(v, kernel, k); err != nil || problem != "" {
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
				if problem, err := companionFile(v, kernel, name, k); err != nil || problem != "" {
					return problem, err
				}
			}
		}
		return "", nil
	}
	return things.Check("modules beside the driver's", look, "each kernel has the modules that are asked for beside the driver's",
		"dkms status, which lists what was built; dkms autoinstall builds what is missing",
		"or write peermem = false or gds = false in [driver]")
}

func companionFile(v host.View, kernel, name string, k KernelSide) (problem string, err error) {
	file, err := facts.ModuleOf(v, kernel, name)
	if err != nil {
		return "", err
	}
	if file == "" && name == Storage && !sourced(v) {
		return "", host.Later{Until: "once the package of nvidia-fs is installed"}
	} else if file == "" && name == Storage && k.Build == "dkms" {
		return "", nil // kmod.DKMSBeside builds it when all else is installed
	} else if file == "" {
		return fmt.Sprintf("cannot load %s: kernel %s has no module %[1]s", name, kernel), nil
	}
	m, err := k.Files.Read(v, file)
	if err != nil {
		return "", err
	}
	if name == Peermem && m.Version != k.Version {
		return fmt.Sprintf("cannot load %s: %[1]s of kernel %s is %s, and the driver %s", name, kernel, m.Version, k.Version), nil
	}
	if why, err := k.fault(v, kernel, m); k.Image == nil && (err != nil || why != "") { // an image's are built again
		return fmt.Sprintf("cannot load %s of kernel %s: %s", name, kernel, why), err
	}
	return "", nil
}

// BuiltBeside returns the state of a module that DKMS builds against the driver's. It compares the
// source's version and the times of the two files, since nothing in the module names the driver.
// nvidia-fs takes the checksums of the driver's symbols from the module that it finds
// (create_nv.symvers.sh in https://github.com/NVIDIA/gds-nvidia-fs), and the kernel compares them.
func BuiltBeside(v host.View, name, kernel string) (version string, state converge.State, err error) {
	driver, err := facts.NvidiaModule(v, kernel)
	if err != nil || driver == "" {
		return "", kmod.BesideFits, err
	}
	if version = sourceVersion(v, name); version == "" {
		return "", kmod.BesideFits, nil
	}
	file, err := facts.ModuleOf(v, kernel, name)
	if err != nil || file == "" {
		return version, kmod.BesideNotBuilt, err
	}
	built, err := v.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return version, kmod.BesideNotBuilt, nil
	} else if err != nil {
		return version, "", err
	}
	driverFile, err := v.Stat(driver)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return version, "", err
	}
	if err == nil && built.Ctime.Before(driverFile.Ctime) {
		return version, kmod.BesideOld, nil
	}
	return version, kmod.BesideFits, nil
}

// builtBeside is BuiltBeside and, in an image for Secure Boot, reports a fault of the signature, so
// that DKMS rebuilds the module.
func (k KernelSide) builtBeside(v host.View, name, kernel string) (version string, state converge.State, err error) {
	version, state, err = BuiltBeside(v, name, kernel)
	if k.Image == nil || version == "" || state != kmod.BesideFits || err != nil {
		return version, state, err
	}
	file, err := facts.ModuleOf(v, kernel, name)
	if err != nil {
		return version, "", err
	}
	m, err := k.Files.Read(v, file)
	if err != nil {
		return version, "", err
	}
	problem, err := k.fault(v, kernel, m)
	if problem != "" {
		state = converge.State(problem)
	}
	return version, state, err
}

// sourced says whether a package has installed nvidia-fs's source, which DKMS builds. Before that a
// missing module is no fault: on a machine that has the driver the spec may newly ask for gds, and
// the stage before installs its package.
func sourced(v host.View) bool { return sourceVersion(v, Storage) != "" }

// sourceVersion returns the version of a module's source that a package has installed, "" if none
// has.
func sourceVersion(v host.View, name string) (version string) {
	names, _ := v.ReadDir("/usr/src") // empty if the folder is missing
	for _, n := range names {
		if of, ok := strings.CutPrefix(n, name+"-"); ok && (version == "" || hardware.Compare(of, version) > 0) {
			version = of
		}
	}
	return version
}

// infinibandFiles says what a kernel lacks to manage NVLink 5's switches; "" if nothing. It waits
// for the package with the modules.
func infinibandFiles(v host.View, kernel string, k KernelSide) (problem string, err error) {
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
			if _, err := v.Stat("/var/lib/dpkg/info/" + extra + ".md5sums"); errors.Is(err, fs.ErrNotExist) {
				return "", host.Later{Until: "once " + extra + " is installed"}
			}
		}
		return fmt.Sprintf("cannot join the GPUs over NVLink: kernel %s has no module %s, by which the switches are managed", kernel, name) +
			things.OrTry("install the InfiniBand drivers for this kernel, of the distribution or of DOCA") +
			things.OrTry(`fabricmanager = "off" in [driver], if another system manages the switches`), nil
	}
	return "", nil
}
