// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// buildEngine makes a layer with a containerd, its ctr and its shim, which lies over a root
// filesystem's own.
func buildEngine(ctx context.Context, name string, log func(string)) error {
	var failed error
	err := parts.Fetch(ctx, func(s parts.Step) {
		if !s.Cached && s.Err == nil {
			log(fmt.Sprintf("built containerd %s in %s", s.Part.Version, s.Took.Round(time.Second)))
		}
		failed = s.Err
	}, name)
	if err := errors.Join(err, failed); err != nil {
		return err
	}

	part, err := parts.Find(name)
	if err != nil {
		return err
	}
	place, err := engineDir(part)
	if err != nil {
		return err
	}
	return Cached(place, func(scratch string) error {
		log("building it with its ctr and shim")
		bin := filepath.Join(scratch, "usr", "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			return err
		}
		if err := buildPrograms(ctx, part.Version, bin); err != nil {
			return err
		}

		// dpkg must not claim that this containerd is its package's: tools read the version there.
		info := filepath.Join(scratch, "var", "lib", "dpkg", "info")
		if err := os.MkdirAll(info, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(info, "containerd.list"), []byte("/.\n"), 0o644)
	})
}

// engineRecipe changes with what buildEngine does.
const engineRecipe = "2"

// engineDir is where the layer of a containerd lies.
func engineDir(part parts.Part) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	name := strings.Join([]string{"containerd", part.Version, engineRecipe, runtime.Version(), runtime.GOARCH}, "-")
	return filepath.Join(cache, name), nil
}

// engineLayer finds the layer of a containerd for Boot.
func engineLayer(name string) (string, error) {
	part, err := parts.Find(name)
	if err != nil {
		return "", errMissing{err.Error()}
	}
	place, err := engineDir(part)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(place); err != nil {
		return "", errMissing{"cannot find ctr and shim of containerd " + part.Version}
	}
	return place, nil
}

// buildPrograms builds the daemon, its client and its shim. The binary of test/containerd/parts is
// not taken: unlike the project's own, it has no version in its build information.
func buildPrograms(ctx context.Context, version, bin string) error {
	const module = "github.com/containerd/containerd/v2"
	scratch, err := os.MkdirTemp("", "gpuadm-lab-*")
	if err != nil {
		return fmt.Errorf("cannot make a scratch folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	src, err := parts.CopyModule(ctx, scratch, module+"@v"+version)
	if err != nil {
		return err
	}

	// As its Makefile does; the snapshotters left out need C libraries.
	versions := fmt.Sprintf("-X %[1]s/version.Version=v%s -X %[1]s/version.Package=%[1]s", module, version)
	_, err = parts.Run(ctx, src, parts.ModuleEnv("CGO_ENABLED=0"), "go", "build", "-o", bin+"/",
		"-ldflags=-s -w "+versions,
		"-tags=no_btrfs,no_devmapper,no_zfs,no_aufs",
		"./cmd/containerd", "./cmd/ctr", "./cmd/containerd-shim-runc-v2")
	return err
}
