// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestMirrorsAreConfiguredOnce: apt refuses one URL with two keyrings; packages of a mirror, which its lock shows, come before those of
// the distribution; and the part of node.toml that mirror writes is one that a spec can have.
func TestMirrorsAreConfiguredOnce(t *testing.T) {
	print := strings.Repeat("AB", 20)
	parse := func(base string) spec.Spec {
		t.Helper()
		text := spec.File{Name: "node.toml", Data: []byte(base)}
		asked := must.Get(spec.Parse(text))(t)
		s := must.Get(spec.Parse(text, spec.File{Name: "node.d/mirror.toml", Data: Mirror{Dir: "/srv/mirror"}.spec(asked, "apt", print)}))(t)
		return s
	}
	s := parse("format = 1\n[driver]\nversion = \"580.95.05\"\n[toolkit]\nversion = \"1.18.0\"\n")
	f := facts.Facts{OS: facts.OS{ID: "debian", Version: "12"}, Arch: "amd64", Kernel: facts.Kernel{Installed: []string{"6.1.0-9-amd64"}}}
	pinned := func(r packages.Repository) (n int) {
		for _, p := range r.Pins {
			if p.Pin == "release o="+packages.MirrorOrigin {
				n++
			}
		}
		return n
	}
	for _, locked := range []bool{false, true} {
		f.Files = nil
		if locked {
			f.Files = map[string][]byte{"/srv/mirror/" + packages.MirrorLock: nil}
		}
		w := must.Get(wantedPackages(drivers.New(), s, f))(t)
		must.That(t, len(w.repos) == 1 && len(w.repos[0].Pins) >= 2 && w.repos[0].Fingerprint == print, "repositories: %+v", w.repos)
		if got := pinned(w.repos[0]) == 1 && len(w.mirrors) == 1; got != locked {
			t.Errorf("with a lock %v: mirrors %v, pins %+v", locked, w.mirrors, w.repos[0].Pins)
		}
	}

	// For dnf there are no streams, and what enable_needed would enable is in the mirror.
	f.OS = facts.OS{ID: "rhel", Version: "9.4", Like: []string{"fedora"}}
	text := spec.File{Name: "node.toml", Data: []byte("format = 1\n[driver]\nversion = \"580.95.05\"\n[driver.repo]\nenable_needed = true\n[toolkit]\nversion = \"1.18.0\"\n")}
	asked := must.Get(spec.Parse(text))(t)
	both := must.Get(spec.Parse(text, spec.File{Name: "node.d/mirror.toml", Data: Mirror{Dir: "/srv/mirror"}.spec(asked, "dnf", print)}))(t)
	w, err := wantedPackages(drivers.New(), both, f)
	must.OK(t, err)
	if len(w.repos) != 1 || w.repos[0].Signed != packages.SignedMetadata || !w.repos[0].Whole || w.stream != "" || len(w.enables()) > 0 {
		t.Errorf("for dnf: repositories %+v, stream %q, enabled %v", w.repos, w.stream, w.enables())
	}
	f.OS = facts.OS{ID: "debian", Version: "12"}

	s = parse("format = 1\n[driver]\nversion = \"580.95.05\"\nsource = \"runfile\"\n[driver.runfile]\nurl = \"https://x.example/a/NVIDIA.run\"\nsha256 = \"" + strings.Repeat("ab", 32) + "\"\n")
	if w, err = wantedPackages(drivers.New(), s, f); err != nil {
		t.Fatal(err)
	}
	if s.Driver.Runfile.URL != "file:///srv/mirror/NVIDIA.run" || len(w.repos) != 1 || w.repos[0].URL != "file:///srv/mirror" {
		t.Errorf("a runfile at %q, what builds its modules from %+v", s.Driver.Runfile.URL, w.repos)
	}
}
