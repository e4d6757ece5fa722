// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestPlanForeseesImmutableFiles: a real file that chattr(1) keeps from being written is refused by the plan, with the command
// that helps.
func TestPlanForeseesImmutableFiles(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/os-release":                    "ID=debian\nVERSION_ID=\"13\"\n",
		"etc/containerd/config.toml":        "version = 2\n",
		"etc/gpuadm/node.toml":              "format = 1\n[runtime]\n",
		"usr/bin/containerd":                "",
		"var/lib/dpkg/status":               "Package: containerd\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.7.24~ds1-6\n\n",
		"var/lib/dpkg/info/containerd.list": "/usr/bin/containerd\n",
	} {
		at := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must.OK(t, os.WriteFile(at, []byte(text), 0o755))
	}
	plan := func() (int, string) {
		var out strings.Builder
		e := env{stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: func(string) string { return "" }, open: host.Open, read: os.ReadFile}
		return run(context.Background(), e, []string{"plan", "--root", root}), out.String()
	}
	const why, try = "/etc/containerd/config.toml: it is immutable", "chattr -i "
	if code, said := plan(); code == exitCannot || strings.Contains(said, try) {
		t.Fatalf("exit code %d\n%s", code, said)
	}
	f := must.Get(os.Open(filepath.Join(root, "etc/containerd/config.toml")))(t)
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
		t.Skip("no immutable files here:", err)
	}
	defer unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
	if code, said := plan(); code != exitCannot || !strings.Contains(said, why) || !strings.Contains(said, try+filepath.Join(root, "etc/containerd/config.toml")) {
		t.Errorf("exit code %d\n%s", code, said)
	}
}
