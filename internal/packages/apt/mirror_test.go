// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// gathers fills the folder of a mirror with a package in any version, and all that it depends on.
func (m *machine) gathers(into string, names ...string) []string {
	m.t.Helper()
	key := must.Get(os.ReadFile(m.repo.key))(m.t)
	m.write("/root/key.gpg", string(key))
	g := packages.Gathering{
		Repos: []packages.Repository{{
			ID:          "driver",
			About:       "test",
			URL:         m.repo.url,
			Key:         "/root/key.gpg",
			Fingerprint: m.fingerprint(),
		}},
		Work: into + "/.work", Into: into, Before: "/srv/none",
		Say: func(files int, _ int64) { m.fetched += files },
	}
	for _, name := range names {
		g.Request.Changes = append(g.Request.Changes, converge.Change{
			Ref:   converge.Ref{Kind: "package", Name: name},
			After: converge.State(name + "=*"),
		})
	}

	m.fetched = 0
	files, err := m.apt.Gather(m.t.Context(), m, g)
	must.That(m.t, err == nil, "%v", wordsOf(err))
	files = append(files, must.Get(m.apt.Index(m.t.Context(), m, g, files))(m.t)...)
	m.must("rm", "-rf", into+"/.work")
	slices.Sort(files)
	return files
}

func (m *machine) fingerprint() string {
	m.t.Helper()
	for line := range strings.Lines(m.repo.gpg("--with-colons", "--list-keys")) {
		if f := strings.Split(line, ":"); f[0] == "fpr" {
			return f[9]
		}
	}

	m.t.Fatal("the repository's key has no fingerprint")
	return ""
}

// TestMirror: what is installed on the machine that mirrors is in the mirror all the same; what no
// source has counts as installed; nothing of the machine changes; and a machine without any other
// source installs from the folder.
func TestMirror(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(
		deb{
			name:    "driver",
			version: "580.1-1",
			fields:  "Depends: lib (= 2:580.1+a~b-1), base (>= 1)\nRecommends: extra\n",
		},
		deb{
			name:    "lib",
			version: "2:580.1+a~b-1",
			fields:  "Depends: dpkg, local\n",
		},
		deb{name: "base", version: "1-1"}, deb{name: "extra", version: "1-1"},
	)
	m.update()
	m.must("apt-get", "install", "-y", "base")
	m.write(facts.DpkgStatus, m.must("cat", facts.DpkgStatus)+"\nPackage: local\nStatus: install ok installed\nArchitecture: all\nVersion: 1\nDepends: base, no-such-package\n\n")
	m.must("mkdir", "-p", "/srv/mirror", "/srv/none-wanted")
	m.must("rm", "/etc/apt/sources.list.d/gpuadm-test.sources")
	before := m.must("sh", "-c", "find /etc /var -type f | sort | xargs sha256sum")

	arch := m.repo.arch
	want := []string{"Packages", "base_1-1_" + arch + ".deb", "driver_580.1-1_" + arch + ".deb", "lib_580.1+a~b-1_" + arch + ".deb"}
	files := m.gathers("/srv/mirror", "driver", "local")
	check.That(t, slices.Equal(files, want) && m.fetched == 3, "files: %v, %d of them fetched", files, m.fetched)
	files = m.gathers("/srv/none-wanted", "local")
	check.That(t, slices.Equal(files, want[:1]), "files: %v, and no source has what is wanted", files)
	for line := range strings.Lines(m.must("sh", "-c", "find /etc /var -type f | sort | xargs sha256sum")) {
		check.That(t, strings.Contains(before, line), "the machine has changed: %s", line)
	}
	m.write("/srv/mirror/base_1-1_"+arch+".deb", "torn")
	if m.gathers("/srv/mirror", "driver"); m.fetched != 1 {
		t.Errorf("%d files were fetched again, and one was wrong", m.fetched)
	}

	signer, _, err := things.NewSigner()
	must.OK(t, err)
	public := must.Get(signer.Public())(t)
	m.write("/srv/mirror/key.asc", string(public))
	_, err = m.apt.Sign(m, "/srv/mirror", signer)
	must.That(t, err == nil, "%v", wordsOf(err))
	// As a node does: apt would read the armored key by awk, which is not here.
	err = things.Key("/etc/apt/keyrings/mirror.gpg", "/srv/mirror/key.asc", signer.Fingerprint(), host.Via{}, "").Thing.Make(t.Context(), m, converge.State(signer.Fingerprint()))
	must.That(t, err == nil, "%v", wordsOf(err))
	m.write("/etc/apt/sources.list.d/mirror.sources", "Types: deb\nURIs: file:///srv/mirror/\nSuites: /\nSigned-By: /etc/apt/keyrings/mirror.gpg\n")
	m.must("sed", "-i", "s/, no-such-package//", facts.DpkgStatus)
	m.must("apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any")
	m.must("apt-get", "install", "-y", "--no-install-recommends", "-s", "driver")
	check.Has(t, m.must("apt-get", "download", "--print-uris", "lib"), "file:/srv/mirror/./lib_580.1%2ba%7eb", "lib comes from")
}

// TestMirrorOfAConflict: a mirror fetches what is new. An installed package that gives way to it
// has no file.
func TestMirrorOfAConflict(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{
		name:    "driver",
		version: "580.1-1",
		fields:  "Conflicts: local\n",
	})
	m.update()
	m.write(facts.DpkgStatus, m.must("cat", facts.DpkgStatus)+"\nPackage: local\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n\n")
	m.must("mkdir", "-p", "/srv/mirror")

	files := m.gathers("/srv/mirror", "driver")
	check.List(t, files, []string{"Packages", "driver_580.1-1_" + m.repo.arch + ".deb"}, "files:")
}

// TestMirrorFull: a disk that is too small is named before anything is fetched.
func TestMirrorFull(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	err := packages.RoomFor(m, "/srv", 1<<60)
	check.That(t, err != nil && strings.Contains(wordsOf(err), "the disk is full"), "%v", err)
	check.OK(t, packages.RoomFor(m, "/srv", 1))
}

// TestLock: each kind of damage is named by its file.
func TestLock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.must("mkdir", "-p", "/srv/mirror")
	m.write("/srv/mirror/a", "one")
	m.write("/srv/mirror/b", "two")
	var lock packages.Lock
	for _, name := range []string{"a", "b"} {
		is := must.Get(packages.Digest(m, "/srv/mirror/"+name))(t)
		lock.Files = append(lock.Files, is)
	}

	check := func(says string) {
		t.Helper()
		problem, err := lock.Verify(m, "/srv/mirror", packages.Digest)
		if err != nil || says == "" && problem != "" || !strings.Contains(problem, says) {
			t.Errorf("%q, %v; want %q", problem, err, says)
		}
	}

	check("")
	m.write("/srv/mirror/b", "twO")
	check("/srv/mirror/b differs from gpuadm-mirror.json")
	m.must("rm", "/srv/mirror/a")
	check("/srv/mirror/a is missing")
	for _, text := range []string{"{", `{"format": 2}`, `{"format": 1, "files": [{"name": "../x"}]}`} {
		m.write("/srv/mirror/"+packages.MirrorLock, text)
		if _, err := packages.ReadLock(m, "/srv/mirror"); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}

	for url, dir := range map[string]string{"file:///srv/m": "/srv/m", "file:/srv/m/": "/srv/m", "https://x/y": "", "": ""} {
		if got := packages.FolderOf(url); got != dir {
			t.Errorf("the folder of %q is %q", url, got)
		}
	}
}

var _ host.Host = isolated{}
