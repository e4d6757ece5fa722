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

// OfOperator reports whether a program is the GPU Operator's runtime: its toolkit is in the folder
// toolkit of toolkit.installDir, which on Container-Optimized OS is /home/kubernetes/bin/nvidia.
// Sources: NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk-installer (toolkitSubDir);
// NVIDIA/cloud-native-docs, gpu-operator/google-gke.rst.
func OfOperator(program string) bool {
	return path.IsAbs(program) && path.Base(path.Dir(program)) == "toolkit" &&
		strings.HasPrefix(path.Base(program), path.Base(RuntimeOfOperator))
}

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

	var found []string
	for _, name := range slices.Compact(names) {
		if strings.HasPrefix(path.Base(name), "nvidia") && Runs(noting{g.v, g}, name) {
			found = append(found, name)
		}
	}

	return found
}

// programsIn returns what handlers run: options.BinaryName in containerd's configuration,
// runtime_engine in its oldest form, runtime_path in CRI-O's. An entry lies seven tables deep.
func programsIn(value any, depth int) (names []string) {
	table, ok := value.(map[string]any)
	if !ok || depth > 8 {
		return nil
	}
	for key, value := range table {
		if text, isText := value.(string); isText && namesProgram(key) {
			names = append(names, text)
		}
		names = append(names, programsIn(value, depth+1)...)
	}

	return names
}

// namesProgram says whether a key of an engine's configuration names what a handler runs.
func namesProgram(key string) bool {
	return strings.EqualFold(key, "BinaryName") ||
		strings.EqualFold(key, "runtime_engine") ||
		strings.EqualFold(key, "runtime_path")
}

// Runs says whether a program can be started. A name without a folder is looked up in more folders,
// and then along the PATH that systemd gives its services:
// https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#%24PATH
func Runs(v host.View, name string, more ...string) bool {
	files := []string{name}
	if !path.IsAbs(name) {
		files = nil
		folders := append(more, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
		for _, dir := range folders {
			files = append(files, path.Join(dir, name))
		}
	}

	for _, file := range files {
		info, err := v.Stat(file)
		if err == nil && info.Mode.IsRegular() && info.Mode&0o111 != 0 {
			return true
		}
	}

	return false
}
