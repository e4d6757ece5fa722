// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"runtime/debug"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/recall"
)

// program says how a program's version can be found out.
type program struct {
	packages []string // deb packages that own it
	module   string   // Go module that has the program's version, as main module or as a part
	ask      bool     // it may be run with --version; its words tell which program it is
}

// version finds a program's version: a program that may be run says it, then the Go build
// information in the binary, then dpkg, which does not know of a file that was put in the package's
// place. For a program that is not run dpkg comes first: that is cheaper.
func (g *gathering) version(ctx context.Context, path string, p program) string {
	packaged := upstream(g.dpkgVersion(path, p.packages...))
	if packaged != "" && !p.ask || !g.exists(path) {
		return packaged
	}

	return g.remember(path, func() (string, error) {
		if !p.ask || !g.v.Runs() {
			return cmp.Or(g.binaryVersion(path, p.module), packaged), context.Cause(ctx)
		}
		out, err := g.v.Ask(ctx, path, "--version")
		version := versionIn(string(out))
		if err == nil && version != "" {
			return version, nil
		}
		return cmp.Or(g.binaryVersion(path, p.module), packaged), errNotSaid // it may say it the next time
	})
}

var errNotSaid = errors.New("the program does not say its version")

// binaryVersion reads the version that the Go linker was given, or that of the module the program
// was built from.
func (g *gathering) binaryVersion(path, module string) string {
	info, err := buildinfo.Read(host.Part{View: g.v, Name: path})
	if err != nil {
		return ""
	}
	return builtVersion(info, module)
}

// builtVersion finds a program's version in its build information, "" if that does not tell.
func builtVersion(info *buildinfo.BuildInfo, module string) string {
	for _, setting := range info.Settings {
		if setting.Key != "-ldflags" { // left out by builds with -trimpath
			continue
		}
		if version := linkedVersion(setting.Value); version != "" {
			return version
		}
	}

	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != module && !strings.HasPrefix(m.Path, module+"/v") {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		version := upstream(m.Version)
		if version != "" && !pseudoVersion().MatchString(m.Version) {
			return version
		}
	}

	return ""
}

// linkedVersion is the version that the Go linker was given; "" if its flags have none.
func linkedVersion(ldflags string) string {
	for _, word := range Words(ldflags) {
		name, value, _ := strings.Cut(strings.TrimPrefix(word, "-X="), "=")
		if !strings.HasSuffix(name, "/version.Version") && !strings.HasSuffix(name, "/version.gitVersion") {
			continue
		}
		if version := upstream(value); version != "" {
			return version
		}
	}
	return ""
}

// pseudoVersion is how Go names a commit that has no version:
// https://go.dev/ref/mod#pseudo-versions
var pseudoVersion = pattern.Of(`[-.]\d{14}-[0-9a-f]{12}`)

// versionIn finds the version in what a program prints when asked:
//
//	containerd github.com/containerd/containerd/v2 v2.1.5 fcd4…
//	crio version 1.31.3
//	Docker version 27.3.1, build 41ca978
func versionIn(out string) string {
	line, _, _ := strings.Cut(out, "\n")
	for _, word := range strings.Fields(line) {
		if v := upstream(word); v != "" {
			return v
		}
	}

	return ""
}

// upstream returns the project's own version in a package's: without epoch, Debian revision, +dfsg
// and ~ds marks and suppliers' suffixes. Pre-releases stay so: 2.0.0~rc.1-1 is 2.0.0-rc.1. Anything
// else comes back as "".
func upstream(version string) string {
	match := released().FindStringSubmatch(version)
	switch {
	case match == nil:
		return ""
	case match[2] == "":
		return match[1]
	}

	return match[1] + "-" + match[2] + "." + match[3]
}

var released = pattern.Of(`^(?:\d+:)?v?(\d+(?:\.\d+)+)(?:[-~.+]?(alpha|beta|rc)[-.~]?(\d+))?`)

// remember reads what version a file has, or which package has the file, unless that is known of a
// file of this path, size and ctime.
func (g *gathering) remember(file string, read func() (string, error)) string {
	known, _ := recall.Once(g.memory(), g.v, file, func(host.View) (string, error) {
		return read()
	})
	return known
}
