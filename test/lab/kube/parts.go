// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
)

// Parts are the built programs.
type Parts struct {
	// Version is that of Kubernetes, "v1.35.4".
	Version string
	paths   map[string]string
}

// Path is a program's file: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet,
// kubeadm, kubectl, helm, devplug, which is the device plugin of devices that are not there,
// NvidiaPlugin or MPSControl.
func (p Parts) Path(name string) string { return p.paths[name] }

// NvidiaPlugin is NVIDIA's device plugin. MPSControl is the program beside it that starts a control
// daemon of MPS for each resource.
const (
	NvidiaPlugin = "nvidia-device-plugin"
	MPSControl   = "mps-control-daemon"
)

// program is one that the module in a folder of the source builds: test/kube, the chart's for helm,
// or test/plugin for NVIDIA's device plugin and its MPS control daemon.
type program struct {
	dir, name, from string
	module          string // the module that gives its version; "" for our own
	loads           bool   // it loads NVML, by cgo
}

// kubernetes is the module of the control plane.
const kubernetes = "k8s.io/kubernetes"

func programs() []program {
	const plugin = "github.com/NVIDIA/k8s-device-plugin"
	list := []program{
		{"test/kube", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", false},
		{"test/kube", "devplug", "./devplug", "", false},
		{"images/build/chart", "helm", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", false},
		{"test/plugin", NvidiaPlugin, plugin + "/cmd/" + NvidiaPlugin, plugin, true},
		{"test/plugin", MPSControl, plugin + "/cmd/" + MPSControl, plugin, true},
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubeadm", "kubectl"} {
		list = append(list, program{"test/kube", name, kubernetes + "/cmd/" + name, kubernetes, false})
	}
	return list
}

// BuildCommand builds what is missing.
const BuildCommand = "go run ./test/lab/kube/cmd/kube build"

// errMissing says that the programs are not built.
type errMissing struct{ what string }

func (e errMissing) Error() string { return e.what + "; to build it: " + BuildCommand }

// CacheDir is the folder of the programs and of running clusters: $GPUADM_TEST_KUBE, or
// gpuadm-test/kube in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("GPUADM_TEST_KUBE"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("cannot resolve GPUADM_TEST_KUBE: %w", err)
		}
		return abs, nil
	}

	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the user's cache folder: %w", err)
	}
	return filepath.Join(dir, "gpuadm-test", "kube"), nil
}

// moduleDir is the folder of the program's module.
func (p program) moduleDir() string { return filepath.Join(lab.Source(), p.dir) }

// places says where in the cache each program lies, by all that makes it: its version, Go's, and
// for our own its source.
func places() (version string, places map[string]string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", nil, err
	}
	places = map[string]string{}
	for _, p := range programs() {
		is := ""
		mod, err := os.ReadFile(filepath.Join(p.moduleDir(), "go.mod"))
		if err != nil {
			return "", nil, fmt.Errorf("cannot find the module of %s: %w", p.name, err)
		}
		if p.module == "" {
			source, err := os.ReadFile(filepath.Join(p.moduleDir(), p.from, "main.go"))
			if err != nil {
				return "", nil, fmt.Errorf("cannot read a program's source: %w", err)
			}
			sum := sha256.Sum256(append(source, mod...))
			is = fmt.Sprintf("%x", sum[:6])
		} else if found := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(p.module) + ` (v\S+)`).FindSubmatch(mod); found != nil {
			is = string(found[1])
		} else {
			return "", nil, fmt.Errorf("cannot tell the version of %s: go.mod does not name %s", p.name, p.module)
		}

		if p.name == "kubelet" {
			version = is
		}
		places[p.name] = filepath.Join(cache, fmt.Sprintf("%s-%s-%s-%s", p.name, is, runtime.Version(), runtime.GOARCH))
	}

	return version, places, nil
}

// Find finds the built programs.
func Find() (Parts, error) {
	version, places, err := places()
	if err != nil {
		return Parts{}, err
	}
	parts := Parts{version, map[string]string{}}
	for name, place := range places {
		parts.paths[name] = filepath.Join(place, name)
		if _, err := os.Stat(parts.paths[name]); err != nil {
			return Parts{}, errMissing{"cannot find " + name}
		}
	}

	return parts, nil
}

// Build builds the programs that are missing, and says what it does: minutes, the first time.
func Build(ctx context.Context, log func(string)) error {
	version, places, err := places()
	if err != nil {
		return err
	}
	for _, p := range programs() {
		began, cached := time.Now(), true
		err := lab.Cached(places[p.name], func(scratch string) error {
			cached = false
			return p.build(ctx, p.moduleDir(), "-mod=readonly", version, filepath.Join(scratch, p.name))
		})
		if err != nil {
			return fmt.Errorf("cannot build %s: %w", p.name, err)
		}
		took := "is there"
		if !cached {
			took = "built in " + time.Since(began).Round(time.Second).String()
		}
		log(fmt.Sprintf("%-24s %s", p.name, took))
	}

	return nil
}

// build builds a program in the folder of a module. Without the versions in it the API server says
// that it is v0.0.0-master. NVML's functions are bound when they are first called, as in the
// plugin's own Makefile.
func (p program) build(ctx context.Context, dir, mod, version, out string) error {
	flags := "-s -w"
	if p.module == kubernetes {
		number := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
		if len(number) != 3 {
			return fmt.Errorf("cannot read the version %q", version)
		}
		const base = "k8s.io/component-base/version"
		for name, is := range map[string]string{
			base + ".gitVersion": version, base + ".gitMajor": number[0], base + ".gitMinor": number[1],
			"k8s.io/client-go/pkg/version.gitVersion": version,
		} {
			flags += " -X " + name + "=" + is
		}
	}

	cgo := "CGO_ENABLED=0"
	if p.loads {
		cgo = "CGO_ENABLED=1"
		flags += " -extldflags=-Wl,-z,lazy"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-C", dir, "-trimpath", "-ldflags="+flags, "-o", out, p.from)
	cmd.Env = append(os.Environ(), cgo, "GOWORK=off", "GOFLAGS="+mod+" -buildvcs=false")
	if output, err := cmd.CombinedOutput(); err != nil {
		return errors.New(strings.TrimSpace(string(output)) + ": " + err.Error())
	}
	return nil
}
