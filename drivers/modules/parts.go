// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Parts checks that the driver's files beside its modules exist: NVML, CUDA, nvidia-smi, and the
// persistence daemon where it is asked for. Their packages differ by repository and branch, and a
// repository may have moved a file; a node without it must not count as converged. installed says
// whether the driver's packages are converged: until they are, Parts waits for the missing files.
// installed is nil where there are no packages.
func Parts(version string, persistenced bool, m facts.Modules, installed func(context.Context, host.View) (bool, error)) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		found, missing := 0, []string(nil)
		for _, name := range []string{"libnvidia-ml.so", "libcuda.so"} {
			if slices.ContainsFunc(m.Libraries, func(l facts.Library) bool { return l.Name == name && l.Version == version }) {
				found++
			} else {
				missing = append(missing, name+"."+version)
			}
		}
		programs := []string{"/usr/bin/nvidia-smi"}
		if persistenced {
			programs = append(programs, "/usr/bin/nvidia-persistenced")
		}
		for _, name := range programs {
			if _, err := v.Stat(name); errors.Is(err, fs.ErrNotExist) {
				missing = append(missing, name)
			} else if err != nil {
				return "", err
			}
		}
		if len(missing) == 0 {
			return "", nil
		}
		whole := found > 0
		if installed != nil {
			var err error
			if whole, err = installed(ctx, v); err != nil {
				return "", err
			}
		}
		if !whole {
			return "", host.Later{Until: "once its packages are installed"}
		}
		return fmt.Sprintf("cannot use driver %s: %s was not found", version, strings.Join(missing, ", ")), nil
	}
	return things.Check("parts of the driver", look, "programs find NVML, CUDA and nvidia-smi, all of the module's version",
		"find the package that has the file, and write it in packages = [] of [driver]",
		"or write another version or source in [driver]")
}
