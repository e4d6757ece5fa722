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

// Installed says what a packager knows of the driver's packages.
type Installed struct {
	// Meets says whether the packages are converged.
	Meets func(context.Context, host.View) (bool, error)
	// Listed returns the installed packages that list a file, by the file.
	Listed func(context.Context, host.View, []string) (map[string]string, error)
	// Reinstall is the command that unpacks packages again.
	Reinstall func(v host.View, names []string) string
}

// Parts checks that the driver's files other than its modules exist: NVML, CUDA, nvidia-smi, and
// the persistence daemon where it is asked for. Their packages differ by repository and branch, and
// a repository may have moved a file; a node without it must not count as converged. Until the
// driver's packages are converged, Parts waits for the missing files. installed is nil where there
// are no packages.
func Parts(version string, persistenced bool, m facts.Modules, installed *Installed) converge.Want {
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
			complete, err = installed.Meets(ctx, v)
			if err != nil {
				return "", err
			}
		}

		if !complete {
			return "", host.Later{Until: "once its packages are installed"}
		}
		return whyMissing(ctx, v, version, missing, installed)
	}

	return things.Check("parts of the driver", look, "programs find NVML, CUDA and nvidia-smi, all of the module's version")
}

// whyMissing says where files that were not found should be from: an installed package whose file
// another process has removed is unpacked again; a file of no package may be in one that the spec
// does not name.
func whyMissing(
	ctx context.Context, v host.View, version string, missing []string, installed *Installed,
) (string, error) {
	problem := fmt.Sprintf("cannot use driver %s: %s was not found", version, strings.Join(missing, ", "))
	listed := map[string]string{}
	if installed != nil {
		var err error
		listed, err = installed.Listed(ctx, v, missing)
		if err != nil {
			return "", err
		}
	}

	var again []string
	for _, file := range missing {
		name := listed[file]
		if name == "" {
			continue
		}
		problem += fmt.Sprintf("\n%s is a file of package %s, which is installed: it was removed outside gpuadm", file, name)
		if !slices.Contains(again, name) {
			again = append(again, name)
		}
	}

	if len(again) > 0 {
		problem += things.OrTry(installed.Reinstall(v, again))
	}
	if len(listed) < len(missing) {
		problem += things.OrTry("find the package that has the file, and write it in packages = [] of [driver]")
		problem += things.OrTry("or write another version or source in [driver]")
	}
	return problem, nil
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
