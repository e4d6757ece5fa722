// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Modules that a spec may ask for beside the driver's. The first is one of the driver's own, of its version; the second is
// built by DKMS from a package with a version of its own.
const (
	peermem = "nvidia-peermem"
	storage = "nvidia-fs"
)

// companionFiles proves by their files that each kernel which has the driver's modules has the companions that are asked for:
// a kernel that does not run cannot load them to show it. Until a kernel has the driver it is not their turn.
func companionFiles(k KernelSide) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		for _, kernel := range k.Kernels {
			driver, err := onDisk(v, kernel)
			if err != nil {
				return "", err
			}
			if driver == nil || driver.Version != k.Version {
				continue
			}
			for _, name := range []string{peermem, storage} {
				if !slices.Contains(k.Companions, name) {
					continue
				}
				if problem, err := companionFile(v, kernel, name, k.Version); err != nil || problem != "" {
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

func companionFile(v host.View, kernel, name, version string) (problem string, err error) {
	file, err := facts.ModuleOf(v, kernel, name)
	if err != nil {
		return "", err
	}
	if file == "" && name == storage && !sourced(v) {
		return "", host.Later{Until: "once the package of nvidia-fs is installed"}
	} else if file == "" {
		return fmt.Sprintf("cannot load %s: kernel %s has no module %[1]s", name, kernel), nil
	}
	m, err := facts.ReadModule(v, file)
	if err != nil {
		return "", err
	}
	if name == peermem && m.Version != version {
		return fmt.Sprintf("cannot load %s: %[1]s of kernel %s is %s, and the driver %s", name, kernel, m.Version, version), nil
	}
	if why, err := fault(v, kernel, m); err != nil || why != "" {
		return fmt.Sprintf("cannot load %s of kernel %s: %s", name, kernel, why), err
	}
	return "", nil
}

// sourced says whether a package has brought nvidia-fs's source, that DKMS builds. Before that its absence is no fault: on a
// machine that has the driver, gds may be asked for since today, and its package comes in the stage before.
func sourced(v host.View) bool {
	names, _ := v.ReadDir("/usr/src") // none where it is not there
	return slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, storage+"-") })
}
