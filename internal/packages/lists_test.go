// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

func (m *machine) lists() converge.State {
	m.t.Helper()
	s, err := NewLists("apt", []string{ourSource}).Look(m.t.Context(), m)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *machine) read() error {
	return NewLists("apt", []string{ourSource}).Make(m.t.Context(), m, fresh)
}

// touchSource lets time pass, then changes our source, so that its lists are old.
func (m *machine) touchSource() {
	m.t.Helper()
	data, err := os.ReadFile(m.dir + ourSource)
	if err != nil {
		m.t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // a tick of the clock that stamps files
	m.write(ourSource, string(data))
}

func TestLists(t *testing.T) {
	m := newMachine(t)
	m.repo.add(deb{name: "a", version: "1"})
	m.repo.publish()
	if got := m.lists(); got != stale {
		t.Errorf("lists that were never read are %s", got)
	}
	if err := m.read(); err != nil || m.lists() != fresh {
		t.Fatalf("read: %v, %s", err, m.lists())
	}
	m.packagers()
	if err := m.read(); err != nil || len(m.packagers()) > 0 {
		t.Errorf("fresh lists were read again: %v", err)
	}
	// The repository is as it was, so apt keeps the list with its old time.
	m.touchSource()
	if got := m.lists(); got != stale {
		t.Errorf("lists older than their source are %s", got)
	}
	if err := m.read(); err != nil || m.lists() != fresh {
		t.Fatalf("read again: %v, %s", err, m.lists())
	}
	// What others have broken does not stop us.
	m.write("/etc/apt/sources.list.d/theirs.list", "deb [trusted=yes] http://127.0.0.1:1/gone ./\n")
	m.touchSource()
	if err := m.read(); err != nil || m.lists() != fresh {
		t.Errorf("beside a broken source: %v, %s", err, m.lists())
	}
	if err := os.Remove(m.dir + ourSource); err != nil {
		t.Fatal(err)
	}
	if got := m.lists(); got != fresh {
		t.Errorf("lists of no source are %s", got)
	}
}

func TestDistrustedLists(t *testing.T) {
	m := newMachine(t)
	m.repo.add(deb{name: "a", version: "1"})
	m.repo.publish()
	release := m.repo.dir + "/InRelease"
	good, err := os.ReadFile(release)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, parts ...string) {
		t.Helper()
		err := m.read()
		if err == nil {
			t.Errorf("%s: the lists were taken", what)
			return
		}
		contains(t, wordsOf(err), append(parts, "cannot read repository "+m.repo.url, ourSource)...)
		if got := m.lists(); got != stale {
			t.Errorf("%s: the lists are %s", what, got)
		}
	}
	put(t, release, strings.Replace(string(good), "Origin: test", "Origin: evil", 1), 0o644)
	refused("tampered", "is not accepted", "BADSIG ", "no proxy rewrites")

	put(t, release, string(good), 0o644)
	other := newRepo(t)
	key, err := os.ReadFile(other.key)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := os.ReadFile(m.repo.key)
	if err != nil {
		t.Fatal(err)
	}
	m.write("/etc/apt/keyrings/gpuadm-test.gpg", string(key))
	refused("wrong key", "is not accepted", "NO_PUBKEY ", "fingerprint")

	m.write("/etc/apt/keyrings/gpuadm-test.gpg", string(mine))
	m.repo.sign("Origin: test\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nValid-Until: Tue, 02 Jan 2024 00:00:00 UTC\nSHA256:\n " + strings.Repeat("0", 64) + " 0 Packages\n")
	refused("expired", "is not accepted", " is expired (invalid since ", "clock")

	m.repo.publish()
	put(t, m.repo.dir+"/Packages", "Package: evil\n", 0o644)
	refused("hash mismatch", "do not fit together", "again in some minutes")

	m.repo.publish()
	if err := m.read(); err != nil || m.lists() != fresh {
		t.Errorf("mended: %v, %s", err, m.lists())
	}
	// An old list is no reason to trust a tampered one: apt by itself would go on with the old and exit with 0.
	put(t, release, strings.Replace(string(good), "Origin: test", "Origin: evil", 1), 0o644)
	m.touchSource()
	refused("tampered later", "is not accepted", "BADSIG ")
}

func TestUnsettledLists(t *testing.T) {
	l := NewLists("apt", []string{"/etc/apt/sources.list.d/a.sources"}).(converge.Settler)
	source := converge.Change{Kind: "file", Name: "/etc/apt/sources.list.d/a.sources", After: "0644 0:0 x 1"}
	gone := source
	gone.After = ""
	for _, c := range []struct {
		found converge.State
		by    converge.Change
		want  converge.State
	}{
		{fresh, source, stale},
		{fresh, gone, fresh},
		{"", gone, stale}, // the engine asks whether it settles at all
		{fresh, converge.Change{Name: "/etc/apt/keyrings/a.gpg", After: "x"}, stale},
		{fresh, converge.Change{Name: "/etc/hosts", After: "x"}, fresh},
		{"", converge.Change{Name: "/etc/hosts", After: "x"}, ""},
	} {
		if got := l.Unsettled(c.found, c.by); got != c.want {
			t.Errorf("%q after %+v: %q, want %q", c.found, c.by, got, c.want)
		}
	}
}

func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	h, err := host.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir+"/etc/apt/sources.list.d/cuda.list", "deb [signed-by=/usr/share/keyrings/cuda.gpg] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n", 0o644)
	if found := Leftovers(h); len(found) > 0 {
		t.Errorf("on a tidy machine: %q", found)
	}
	put(t, dir+"/etc/apt/sources.list.d/nvidia-docker.list", "# old\ndeb https://nvidia.github.io/nvidia-docker/ubuntu18.04/$(ARCH) /\n", 0o644)
	put(t, dir+"/etc/apt/sources.list.d/libnvidia-container.list", "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n", 0o644)
	put(t, dir+"/etc/apt/sources.list.d/cuda2.sources", "Types: deb\nURIs: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64\nSuites: /\n", 0o644)
	put(t, dir+"/etc/apt/trusted.gpg", "x", 0o644)
	put(t, dir+"/etc/apt/trusted.gpg.d/nvidia.gpg", "x", 0o644)
	said := strings.Join(Leftovers(h), "\n")
	contains(t, said, "nvidia-docker.list: nvidia-docker's repository", "libnvidia-container.list: https://nvidia.github.io/libnvidia-container/stable/deb/", "cuda.list, /etc/apt/sources.list.d/cuda2.sources: each names", "/etc/apt/trusted.gpg:", "trusted.gpg.d/nvidia.gpg")
	if n := len(Leftovers(h)); n != 5 {
		t.Errorf("%d leftovers:\n%s", n, said)
	}
}
