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

// Modules that a spec may ask for beside the driver's. The first is one of the driver's own, of its version; the second is
// built by DKMS from a package with a version of its own.
const (
	Peermem = "nvidia-peermem"
	Storage = "nvidia-fs"
)

// beside says whether a module is no part of the driver that every installation of it has.
func beside(module string) bool {
	return module == Peermem || module == Storage || slices.Contains(facts.InfinibandModules(), module)
}

// companionFiles proves by their files that each kernel which has the driver's modules has the companions that are asked for:
// a kernel that does not run cannot load them to show it. Until a kernel has the driver it is not their turn.
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
		return "", nil // it is built when all else is there: kmod.DKMSBeside
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

// BuiltBeside returns the state of a module that DKMS builds against the driver's: by its source's version and by the times of the
// two files, since nothing in it says which driver that was. nvidia-fs takes the sums of the driver's symbols from the
// module that it finds (create_nv.symvers.sh in https://github.com/NVIDIA/gds-nvidia-fs), and the kernel compares them.
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

// builtBeside is BuiltBeside and, in an image for Secure Boot, what is wrong with the signature: then it is built again.
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

// sourced says whether a package has brought nvidia-fs's source, that DKMS builds. Before that its absence is no fault: on a
// machine that has the driver, gds may be asked for since today, and its package comes in the stage before.
func sourced(v host.View) bool { return sourceVersion(v, Storage) != "" }

// sourceVersion is the version of the source of a module that a package has brought, "" if none has.
func sourceVersion(v host.View, name string) (version string) {
	names, _ := v.ReadDir("/usr/src") // none where it is not there
	for _, n := range names {
		if of, ok := strings.CutPrefix(n, name+"-"); ok && (version == "" || hardware.Compare(of, version) > 0) {
			version = of
		}
	}
	return version
}

// infinibandFiles says what a kernel lacks to manage NVLink 5's switches; "" if nothing. It waits for a package that brings it.
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
