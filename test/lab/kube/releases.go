// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/gpuadm/gpuadm/test/lab"
)

// apiserverOf is the API server of another release of Kubernetes, such as "v1.30.14", which the
// first that asks builds: minutes of two cores. No go.sum names its modules: Go asks the checksum
// database for each.
func apiserverOf(ctx context.Context, release string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	const name = "kube-apiserver"
	place := filepath.Join(cache, fmt.Sprintf("%s-%s-%s-%s", name, release, runtime.Version(), runtime.GOARCH))
	err = lab.Cached(place, func(scratch string) error {
		module, err := os.MkdirTemp("", "kube-release-")
		if err != nil {
			return fmt.Errorf("cannot make a folder: %w", err)
		}
		defer func() { _ = os.RemoveAll(module) }()

		if err := releaseModule(ctx, module, release); err != nil {
			return err
		}
		p := program{
			name:   name,
			from:   kubernetes + "/cmd/" + name,
			module: kubernetes,
		}
		return p.build(ctx, module, "-mod=mod", release, filepath.Join(scratch, name))
	})
	if err != nil {
		return "", fmt.Errorf("cannot build the API server of %s: %w", release, err)
	}
	return filepath.Join(place, name), nil
}

// replaced is a line of Kubernetes' go.mod for a module of the same repository.
var replaced = regexp.MustCompile(`(?m)^\s+(k8s\.io/\S+) => \./staging/`)

// releaseModule makes a module that builds a release of Kubernetes: the modules beside it in its
// repository are published under their own numbers.
func releaseModule(ctx context.Context, dir, release string) error {
	text := "module lab.invalid/release\n\ngo 1.23\n\nrequire " + kubernetes + " " + release + "\n"
	goMod := filepath.Join(dir, "go.mod")
	if err := os.WriteFile(goMod, []byte(text), 0o600); err != nil {
		return fmt.Errorf("cannot write a module: %w", err)
	}

	own, err := fetched(ctx, dir, kubernetes, release)
	if err != nil {
		return err
	}
	requires, err := os.ReadFile(own.GoMod)
	if err != nil {
		return fmt.Errorf("cannot read the go.mod of %s: %w", release, err)
	}

	staging := strings.Replace(release, "v1.", "v0.", 1)
	lines := replaced.FindAllStringSubmatch(string(requires), -1)
	if len(lines) < 20 {
		return fmt.Errorf("cannot tell the modules of %s: its go.mod replaces %d", release, len(lines))
	}
	for _, line := range lines {
		text += fmt.Sprintf("\nreplace %s => %s %s\n", line[1], line[1], staging)
	}
	if err := os.WriteFile(goMod, []byte(text), 0o600); err != nil {
		return fmt.Errorf("cannot write a module: %w", err)
	}
	return nil
}

// module is a module of Go in Go's own cache: its folder, and its go.mod's file.
type module struct{ Dir, GoMod string }

// fetched has Go fetch a module, whose sum the checksum database knows.
func fetched(ctx context.Context, dir, path, version string) (module, error) {
	text, err := goCommand(ctx, dir, "mod", "download", "-json", path+"@"+version)
	if err != nil {
		return module{}, err
	}
	var m module
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return module{}, fmt.Errorf("cannot read what go mod download says of %s: %w", path, err)
	}
	return m, nil
}

// Karpenter fetches the kinds of Karpenter and its provider for AWS, as their repository has them.
// The provider for Azure is in no module that Go's proxy has.
func Karpenter(ctx context.Context) (kinds []Object, err error) {
	const provider, version = "github.com/aws/karpenter-provider-aws", "v1.14.0"
	m, err := fetched(ctx, os.TempDir(), provider, version)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch Karpenter's kinds: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(m.Dir, "pkg/apis/crds/karpenter*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("cannot find Karpenter's kinds in %s: %w", m.Dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read Karpenter's kinds: %w", err)
		}
		objects, err := Documents(text)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, objects...)
	}

	return kinds, nil
}

// goCommand runs the go command in a folder, and returns what it printed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var said strings.Builder
	cmd.Stderr = &said
	output, err := cmd.Output()
	if err != nil {
		return "", errors.New(strings.TrimSpace(said.String()+string(output)) + ": " + err.Error())
	}
	return string(output), nil
}
