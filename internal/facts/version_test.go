// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBinaryVersion builds a program as release builds do and reads its version.
func TestBinaryVersion(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil || testing.Short() {
		t.Skip("no Go compiler: ", err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.org/daemon\n",
		"main.go": "package main\n\nfunc main() {}\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}

	const flags = "-s -w -X example.org/daemon/version.Version=v1.7.24+ds1 -X main.x=y"
	build := exec.Command(goTool, "build", "-o", "daemon", "-buildvcs=false", "-ldflags", flags, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=") // as Debian builds: with -trimpath a binary does not have its flags
	out, err := build.CombinedOutput()
	must.That(t, err == nil, "%v\n%s", err, out)

	data := must.Get(os.ReadFile(filepath.Join(dir, "daemon")))(t)
	g := &gathering{
		v:     files{"/usr/bin/x": data, "/usr/bin/y": "no program"},
		cache: new(Cache),
	}
	p := program{module: "example.org/daemon", ask: true}
	check.Equal(t, g.version(t.Context(), "/usr/bin/x", p), "1.7.24", "got")
	check.None(t, g.version(t.Context(), "/usr/bin/y", p), "no program:")
}

func TestBuiltVersion(t *testing.T) {
	const containerd = "github.com/containerd/containerd"
	module := func(path, version string) debug.Module {
		return debug.Module{Path: path, Version: version}
	}
	fork := module("github.com/k3s-io/containerd/v2", "v2.1.5-k3s1")
	k3s := module(containerd+"/v2", "v2.1.5")
	k3s.Replace = &fork
	api := module(containerd+"/api", "v1.9.0")
	ofK3s := debug.BuildInfo{
		Main: module("github.com/k3s-io/k3s", "v1.33.5"),
		Deps: []*debug.Module{&api, &k3s},
	}
	of := func(path, version string) debug.BuildInfo {
		return debug.BuildInfo{Main: module(path, version)}
	}
	for _, c := range []struct {
		name, want string
		info       debug.BuildInfo
	}{
		{"tagged", "2.1.5", of(containerd+"/v2", "v2.1.5")},
		{"from changed sources", "2.1.5", of(containerd+"/v2", "v2.1.5+dirty")},
		{"a commit", "", of(containerd+"/v2", "v2.1.6-0.20251105010203-0123456789ab")},
		{"a commit after a pre-release", "", of(containerd+"/v2", "v2.2.0-rc.1.0.20251105010203-0123456789ab")},
		{"a commit without tags", "", of(containerd, "v0.0.0-20251105010203-0123456789ab")},
		{"devel", "", debug.BuildInfo{Main: module(containerd, "(devel)")}},
		{"part of another program", "2.1.5", ofK3s},
		{"linker flags first", "2.0.0-rc.1", debug.BuildInfo{
			Main:     module(containerd+"/v2", "v2.1.5"),
			Settings: []debug.BuildSetting{{Key: "-ldflags", Value: "-X=" + containerd + "/v2/version.Version=v2.0.0-rc.1 '-extldflags=-static -x'"}},
		}},
	} {
		check.Equal(t, builtVersion(&c.info, containerd), c.want, "%s: got", c.name)
	}
}
