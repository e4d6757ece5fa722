// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// image makes a root folder of a distribution with one kernel, and a public key in it.
func image(t *testing.T, osRelease string, database map[string]string) (dir, fingerprint string) {
	t.Helper()
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Fatal("gpg is not installed: apt-get install gpg")
	}
	dir = t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must.OK(t, os.MkdirAll(filepath.Dir(dir+name), 0o755))
		must.OK(t, os.WriteFile(dir+name, []byte(text), 0o644))
	}
	write("/etc/os-release", osRelease)
	write("/lib/modules/6.1.0-41-amd64/modules.dep", "")
	for name, text := range database {
		write(name, text)
	}
	home, err := os.MkdirTemp("", "gpg") // gpg's sockets need a short path
	must.OK(t, err)
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		os.RemoveAll(home)
	})
	gpg := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--passphrase", ""}, args...)...).Output()
		if err != nil {
			t.Fatalf("gpg %v: %v", args, err)
		}
		return string(out)
	}
	gpg("--quick-gen-key", "test <t@example.invalid>", "ed25519", "sign", "1d")
	write("/etc/gpuadm/key.asc", gpg("--armor", "--export"))
	for line := range strings.Lines(gpg("--list-keys", "--with-colons")) {
		if f := strings.Split(line, ":"); f[0] == "fpr" {
			return dir, f[9]
		}
	}
	t.Fatal("gpg lists no key")
	return "", ""
}

// A plan of a root folder and its apply agree: packages wait for first boot, and what can be written is written.
func TestRootFolderWithADriver(t *testing.T) {
	for name, c := range map[string]struct {
		osRelease string
		database  map[string]string
	}{
		"debian": {"ID=debian\nVERSION_ID=12\n", map[string]string{"/var/lib/dpkg/status": "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n\n", "/var/lib/dpkg/arch": "amd64\n", "/etc/apt/apt.conf.d/00": "", "/etc/apt/sources.list.d/x.list": "", "/etc/apt/preferences.d/x": ""}},
		"rocky":  {"ID=rocky\nVERSION_ID=9.6\nID_LIKE=\"rhel centos fedora\"\n", map[string]string{"/var/lib/rpm/rpmdb.sqlite": "x", "/usr/bin/dnf": "", "/etc/dnf/modules.d/x": "", "/lib64/ld-linux-x86-64.so.2": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, fingerprint := image(t, c.osRelease, c.database)
			h := must.Get(host.Open(dir))(t)
			e := engine(t, "[driver]\nversion = \"580.95.05\"\n[driver.repo]\nurl = \"https://mirror.example/debian12\"\nkey = \"/etc/gpuadm/key.asc\"\nfingerprint = \""+fingerprint+"\"\n")
			p, err := e.Plan(context.Background(), h)
			if err != nil || len(p.Cannot()) > 0 || p.Now() == 0 {
				t.Fatalf("the plan: %+v, %v", p.Changes, err)
			}
			res, err := e.Apply(context.Background(), h)
			if err != nil {
				t.Fatalf("apply: %v", err)
			}
			if len(res.Made) != p.Now() || len(res.Deferred) != p.Deferred {
				t.Errorf("the plan has %d changes and %d deferred ones, apply made %d and deferred %d", p.Now(), p.Deferred, len(res.Made), len(res.Deferred))
			}
			for _, made := range res.Made {
				if made.Kind == "package" || made.Kind == "package-lists" {
					t.Errorf("apply made %s in a folder", made)
				}
			}
			if again, err := e.Apply(context.Background(), h); err != nil || again.Run != "" {
				t.Errorf("the second apply made %v, %v", again.Made, err)
			}
		})
	}
}
