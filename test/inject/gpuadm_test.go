// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/inject"
	"github.com/gpuadm/gpuadm/test/must"
)

// whole asks for every injection at every call; without it there is a sample.
var whole = os.Getenv("INJECT_ALL") != ""

// scratch is a folder for root folders and the program. Nothing here tests a power cut, so memory
// is as good as a disk, and a disk would only be slower.
var scratch = sync.OnceValues(func() (string, error) {
	var room unix.Statfs_t
	in := "/dev/shm"
	if unix.Statfs(in, &room) != nil || room.Bavail*uint64(room.Bsize) < 2<<30 {
		in = ""
	}
	return os.MkdirTemp(in, "gpuadm-inject-")
})

func folder(t *testing.T) string {
	t.Helper()
	in, err := scratch()
	var dir string
	if err == nil {
		dir, err = os.MkdirTemp(in, "")
	}
	must.OK(t, err)
	t.Cleanup(func() {
		check.OK(t, os.RemoveAll(dir))
	})
	return dir
}

// program builds gpuadm as the Makefile does, but for the C library it is linked against.
var program = sync.OnceValues(func() (string, error) {
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	// go test keeps a result until something changes that the test has read, and knows nothing of
	// what go build reads.
	err = filepath.WalkDir("../..", func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "gpuadm")
	build := exec.Command("go", "build", "-trimpath", "-tags=netgo,osusergo", "-ldflags=-s -w", "-o", name, "./cmd/gpuadm")
	build.Dir = "../.."
	if _, set := os.LookupEnv("CGO_CFLAGS"); !set {
		build.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build gpuadm: %w: %s", err, out)
	}
	return name, nil
})

// gpuadm is the program at work on a root folder. Its environment has nothing of the test's.
func gpuadm(t *testing.T, root, command string) *exec.Cmd {
	t.Helper()
	name := must.Get(program())(t)
	cmd := exec.Command(name, append(strings.Fields(command), "--root", root)...)
	cmd.Dir = root
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	return cmd
}

// run runs it without a tracer.
func run(t *testing.T, root, command string) inject.Result {
	t.Helper()
	cmd := gpuadm(t, root, command)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	exit := (*exec.ExitError)(nil)
	must.That(t, err == nil || errors.As(err, &exit), "%v", err)
	return inject.Result{
		Stdout: stdout.String(),
		Stderr: stderr.String(),
		Exit:   cmd.ProcessState.ExitCode(),
	}
}

const (
	firstSpec = `format = 1
[driver]
version = "535"
source = "distro"
[runtime]
set_as_default = true
`
	secondSpec = `format = 1
[driver]
version = "535"
source = "distro"
parameters = { NVreg_OpenRmEnableUnsupportedGpus = "1" }
[runtime]
handler = "gpu"
`
)

// fresh makes the root folder that all scenarios begin with: a recorded Debian with its container
// engine, and a configuration that has an owner, a mode and an attribute of its own.
func fresh(t *testing.T, root string) {
	t.Helper()
	layOut(t, "../hosts/debian12-containerd16.txtar", root)
	for name, data := range map[string]string{
		"etc/gpuadm/node.toml": firstSpec, "second.toml": secondSpec, "etc/systemd/system/keep": "", "usr/local/keep": "",
		"etc/apt/apt.conf.d/keep": "", "etc/apt/preferences.d/keep": "", "etc/modprobe.d/keep": "",
	} {
		place := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(place), 0o755)
		if err == nil {
			err = os.WriteFile(place, []byte(data), 0o644)
		}
		must.OK(t, err)
	}

	config, program := filepath.Join(root, "etc/containerd/config.toml"), filepath.Join(root, "usr/bin/nvidia-container-runtime")
	err := os.Chmod(config, 0o640)
	if err == nil {
		err = os.WriteFile(program, nil, 0o755) // without it nothing is made the default
	}
	if err == nil && os.Getuid() == 0 {
		err = os.Chown(config, 0, 4)
	}
	if err == nil {
		if err = unix.Setxattr(config, "user.note", []byte("kept"), 0); errors.Is(err, unix.ENOTSUP) {
			err = nil
		}
	}

	must.OK(t, err)
}
