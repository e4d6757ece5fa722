// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// engineRecipe changes with what buildEngine does.
const engineRecipe = "2"

// engineDir is where the layer of a containerd lies.
func engineDir(part parts.Part) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, fmt.Sprintf("containerd-%s-%s-%s-%s", part.Version, engineRecipe, runtime.Version(), runtime.GOARCH)), nil
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

// buildPrograms builds the daemon, its client and its shim. The binary of test/containerd/parts is not taken: unlike the
// project's own, it has no version in its build information.
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
	_, err = parts.Run(ctx, src, parts.ModuleEnv("CGO_ENABLED=0"), "go", "build", "-o", bin+"/",
		// As its Makefile does; the snapshotters left out need C libraries.
		fmt.Sprintf("-ldflags=-s -w -X %[1]s/version.Version=v%s -X %[1]s/version.Package=%[1]s", module, version),
		"-tags=no_btrfs,no_devmapper,no_zfs,no_aufs",
		"./cmd/containerd", "./cmd/ctr", "./cmd/containerd-shim-runc-v2")
	return err
}
