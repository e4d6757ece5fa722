// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Where the programs that NVIDIA's runtime handlers run are put: by the toolkit's packages, and by
// the GPU Operator. Sources: https://github.com/NVIDIA/gpu-operator/issues/2387 (its installer's
// log); k3s-io/k3s, pkg/agent/containerd/runtimes.go: it looks in both.
const (
	RuntimeOfPackages = "/usr/bin/nvidia-container-runtime"
	RuntimeOfOperator = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
)

// programs lists the NVIDIA runtimes that can be run here, as the engines' configurations name them
// and where packages and the GPU Operator put them.
func (g *gathering) programs(engines []Engine) []string {
	names := []string{RuntimeOfPackages, RuntimeOfOperator}
	for _, e := range engines {
		for _, f := range e.Files {
			if path.Ext(f.Path) == ".json" || len(f.Data) >= maxParsed {
				continue
			}
			if tree, err := g.texts.Values(f.Data); err == nil {
				names = append(names, programsIn(tree, 0)...)
			}
		}
	}
	slices.Sort(names)
	var there []string
	for _, name := range slices.Compact(names) {
		if strings.HasPrefix(path.Base(name), "nvidia") && Runs(g.v, name) {
			there = append(there, name)
		}
	}
	return there
}

// programsIn returns what handlers run: options.BinaryName in containerd's configuration,
// runtime_engine in its oldest form, runtime_path in CRI-O's. An entry lies seven tables deep.
func programsIn(v any, depth int) (names []string) {
	t, ok := v.(map[string]any)
	if !ok || depth > 8 {
		return nil
	}
	for key, v := range t {
		if text, ok := v.(string); ok && slices.ContainsFunc([]string{"BinaryName", "runtime_engine", "runtime_path"}, func(k string) bool { return strings.EqualFold(k, key) }) {
			names = append(names, text)
		}
		names = append(names, programsIn(v, depth+1)...)
	}
	return names
}

// Runs says whether a program can be started. A name without a folder is looked up in more folders,
// and then along the PATH that systemd gives its services:
// https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#%24PATH
func Runs(v host.View, name string, more ...string) bool {
	places := []string{name}
	if !path.IsAbs(name) {
		places = nil
		for _, dir := range append(more, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin") {
			places = append(places, path.Join(dir, name))
		}
	}
	return slices.ContainsFunc(places, func(p string) bool {
		i, err := v.Stat(p)
		return err == nil && i.Mode.IsRegular() && i.Mode&0o111 != 0
	})
}
