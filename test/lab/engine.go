// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
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

// buildPrograms builds the daemon, its client and its shim. It builds in a copy of the module: "go install
// module@version" refuses modules with replace or exclude directives in go.mod, as containerd has. The binary of
// test/containerd/parts is not taken: unlike the project's own, it does not say in its build information what version it is.
func buildPrograms(ctx context.Context, version, bin string) error {
	const module = "github.com/containerd/containerd/v2"
	env := []string{"GOFLAGS=-mod=mod -buildvcs=false", "GOWORK=off", "GOBIN=", "CGO_ENABLED=0"}
	scratch, err := os.MkdirTemp("", "gpuadm-lab-*")
	if err != nil {
		return fmt.Errorf("cannot make a scratch folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	out, err := run(ctx, scratch, env, "go", "mod", "download", "-json", module+"@v"+version)
	if err != nil {
		return err
	}
	var got struct{ Dir string }
	if err := json.Unmarshal(out, &got); err != nil {
		return fmt.Errorf("cannot read the answer of go mod download: %w", err)
	}
	src := filepath.Join(scratch, "src")
	if err := os.CopyFS(src, os.DirFS(got.Dir)); err != nil {
		return fmt.Errorf("cannot copy the module: %w", err)
	}
	_, err = run(ctx, src, env, "go", "build", "-o", bin+"/",
		// As its Makefile does; the snapshotters left out need C libraries.
		fmt.Sprintf("-ldflags=-s -w -X %[1]s/version.Version=v%s -X %[1]s/version.Package=%[1]s", module, version),
		"-tags=no_btrfs,no_devmapper,no_zfs,no_aufs",
		"./cmd/containerd", "./cmd/ctr", "./cmd/containerd-shim-runc-v2")
	return err
}
