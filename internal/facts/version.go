// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"debug/buildinfo"
	"runtime/debug"
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
