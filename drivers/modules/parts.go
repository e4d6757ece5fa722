// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Parts checks that the driver's files other than its modules exist: NVML, CUDA, nvidia-smi, and
// the persistence daemon where it is asked for. Their packages differ by repository and branch, and
// a repository may have moved a file; a node without it must not count as converged. installed says
// whether the driver's packages are converged: until they are, Parts waits for the missing files.
// installed is nil where there are no packages.
func Parts(
	version string, persistenced bool, m facts.Modules,
	installed func(context.Context, host.View) (bool, error),
) converge.Want {
	programs := []string{"/usr/bin/nvidia-smi"}
	if persistenced {
		programs = append(programs, "/usr/bin/nvidia-persistenced")
	}

	look := func(ctx context.Context, v host.View) (string, error) {
		var missing []string
		libraries := []string{"libnvidia-ml.so", "libcuda.so"}
		for _, name := range libraries {
			if !hasLibrary(m, name, version) {
				missing = append(missing, name+"."+version)
			}
		}
		complete := len(missing) < len(libraries) // without packages: one library shows that the rest is due

		for _, name := range programs {
			_, err := v.Stat(name)
			if errors.Is(err, fs.ErrNotExist) {
				missing = append(missing, name)
			} else if err != nil {
				return "", err
			}
		}
		if len(missing) == 0 {
			return "", nil
		}

		if installed != nil {
			var err error
			complete, err = installed(ctx, v)
			if err != nil {
				return "", err
			}
		}
		if !complete {
			return "", host.Later{Until: "once its packages are installed"}
		}
		return fmt.Sprintf("cannot use driver %s: %s was not found", version, strings.Join(missing, ", ")), nil
	}

	return things.Check("parts of the driver", look, "programs find NVML, CUDA and nvidia-smi, all of the module's version",
		"find the package that has the file, and write it in packages = [] of [driver]",
		"or write another version or source in [driver]")
}

// hasLibrary says whether a library of a version is installed.
func hasLibrary(m facts.Modules, name, version string) bool {
	for _, lib := range m.Libraries {
		if lib.Name == name && lib.Version == version {
			return true
		}
	}
	return false
}
