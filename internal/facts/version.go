// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"debug/buildinfo"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Cache remembers, from one Gather to the next, what costs most to find out: the versions found in binaries that no package
// database knows, and modules, which hold as long as the file's path, size and ctime do; what a cloud answered, for a run; and parsed texts.
// Given another View it starts from nothing. The zero value is empty and usable.
type Cache struct {
	view     host.View
	versions map[binary]string
	modules  *ModuleCache
	asked    asked
	gpus     []PCI // found by GPUs, for the next Gather
	texts    *toml.Texts
}

type binary struct {
	path  string
	size  int64
	ctime time.Time
}

// program says how a program's version can be found out.
type program struct {
	packages []string // deb packages that own it
	module   string   // Go module that has the program's version, as main module or as a part
	ask      bool     // it may be run with --version; its words tell which program it is
}

// version finds a program's version: dpkg says it, then the Go build information in the binary, then the program
// itself. rpm's database needs a library to be read; the binary's own word is as good.
func (l *look) version(ctx context.Context, path string, p program) string {
	if v := upstream(l.dpkgVersion(path, p.packages...)); v != "" {
		return v
	}
	info, err := l.v.Stat(path)
	if err != nil {
		return ""
	}
	key := binary{path, info.Size, info.Ctime}
	if v, ok := l.cache.versions[key]; ok {
		return v
	}
	found := l.binaryVersion(path, p.module)
	if found == "" && p.ask && l.v.Runs() {
		if out, err := l.v.Ask(ctx, path, "--version"); err == nil {
			found = spoken(string(out))
		}
	}
	if ctx.Err() == nil {
		if l.cache.versions == nil {
			l.cache.versions = map[binary]string{}
		}
		l.cache.versions[key] = found
	}
	return found
}

// part reads parts of a file: build information is a few hundred bytes of a binary of 50 MB.
type part struct {
	v    host.View
	name string
}

func (p part) ReadAt(b []byte, off int64) (int, error) { return p.v.ReadAt(p.name, b, off) }

// binaryVersion reads the version that the Go linker was given, or that of the module the program was built from.
func (l *look) binaryVersion(path, module string) string {
	info, err := buildinfo.Read(part{l.v, path})
	if err != nil {
		return ""
	}
	return builtVersion(info, module)
}

// builtVersion finds a program's version in its build information, "" if that does not tell.
func builtVersion(info *buildinfo.BuildInfo, module string) string {
	for _, s := range info.Settings {
		if s.Key != "-ldflags" { // left out by builds with -trimpath
			continue
		}
		for _, word := range Words(s.Value) {
			name, value, _ := strings.Cut(strings.TrimPrefix(word, "-X="), "=")
			if strings.HasSuffix(name, "/version.Version") || strings.HasSuffix(name, "/version.gitVersion") {
				if v := upstream(value); v != "" {
					return v
				}
			}
		}
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != module && !strings.HasPrefix(m.Path, module+"/v") {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if v := upstream(m.Version); v != "" && !pseudoVersion().MatchString(m.Version) {
			return v
		}
	}
	return ""
}

// pseudoVersion is how Go names a commit that has no version: https://go.dev/ref/mod#pseudo-versions
var pseudoVersion = pattern.Of(`[-.]\d{14}-[0-9a-f]{12}`)

// spoken finds the version in what a program prints when asked:
//
//	containerd github.com/containerd/containerd/v2 v2.1.5 fcd4…
//	crio version 1.31.3
//	Docker version 27.3.1, build 41ca978
func spoken(out string) string {
	line, _, _ := strings.Cut(out, "\n")
	for _, word := range strings.Fields(line) {
		if v := upstream(word); v != "" {
			return v
		}
	}
	return ""
}

// Where the programs that NVIDIA's runtime handlers run are put: by the toolkit's packages, and by the GPU Operator. Sources:
// https://github.com/NVIDIA/gpu-operator/issues/2387 (its installer's log); k3s-io/k3s, pkg/agent/containerd/runtimes.go: it looks in both.
const (
	RuntimeOfPackages = "/usr/bin/nvidia-container-runtime"
	RuntimeOfOperator = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
)

// programs lists the NVIDIA runtimes that can be run here, as the engines' configurations name them and where packages and the GPU
// Operator put them.
func (l *look) programs(engines []Engine) []string {
	names := []string{RuntimeOfPackages, RuntimeOfOperator}
	for _, e := range engines {
		for _, f := range e.Files {
			if path.Ext(f.Path) == ".json" || len(f.Data) >= maxParsed {
				continue
			}
			if tree, err := l.texts.Values(f.Data); err == nil {
				names = append(names, programsIn(tree, 0)...)
			}
		}
	}
	slices.Sort(names)
	var there []string
	for _, name := range slices.Compact(names) {
		if strings.HasPrefix(path.Base(name), "nvidia") && l.runs(name) {
			there = append(there, name)
		}
	}
	return there
}

// programsIn returns what handlers run: options.BinaryName in containerd's configuration, runtime_engine in its oldest form,
// runtime_path in CRI-O's. An entry lies seven tables deep.
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

// runs says whether a program can be started. A name without a folder is looked up along the PATH that systemd gives its services:
// https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#%24PATH
func (l *look) runs(name string) bool {
	places := []string{name}
	if !path.IsAbs(name) {
		places = nil
		for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
			places = append(places, path.Join(dir, name))
		}
	}
	return slices.ContainsFunc(places, func(p string) bool {
		i, err := l.v.Stat(p)
		return err == nil && i.Mode.IsRegular() && i.Mode&0o111 != 0
	})
}
