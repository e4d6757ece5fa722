// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMirrorsAreConfiguredOnce: apt refuses one URL with two keyrings; packages of a mirror, which
// its lock shows, come before those of the distribution; and the part of node.toml that mirror
// writes is one that a spec can have.
func TestMirrorsAreConfiguredOnce(t *testing.T) {
	print := strings.Repeat("AB", 20)
	parse := func(base string) spec.Spec {
		t.Helper()
		text := spec.File{Name: "node.toml", Data: []byte(base)}
		asked := must.Get(spec.Parse(text))(t)
		s := must.Get(spec.Parse(text, spec.File{
			Name: "node.d/mirror.toml",
			Data: Mirror{Dir: "/srv/mirror"}.spec(asked, "apt", print),
		}))(t)
		return s
	}

	s := parse("format = 1\n[driver]\nversion = \"580.95.05\"\n[toolkit]\nversion = \"1.18.0\"\n")
	f := facts.Facts{
		OS:     facts.OS{ID: "debian", Version: "12"},
		Arch:   "amd64",
		Kernel: facts.Kernel{Installed: []string{"6.1.0-9-amd64"}},
	}
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
		w := must.Get(wantedPackages(drivers.New(nil), s, f))(t)
		must.That(t, len(w.repos) == 1 && len(w.repos[0].Pins) >= 2 && w.repos[0].Fingerprint == print, "repositories: %+v", w.repos)
		if got := pinned(w.repos[0]) == 1 && len(w.mirrors) == 1; got != locked {
			t.Errorf("with a lock %v: mirrors %v, pins %+v", locked, w.mirrors, w.repos[0].Pins)
		}
	}

	// For dnf there are no streams, and what enable_needed would enable is in the mirror.
	f.OS = facts.OS{ID: "rhel", Version: "9.4", Like: []string{"fedora"}}
	text := spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n[driver]\nversion = \"580.95.05\"\n[driver.repo]\nenable_needed = true\n[toolkit]\nversion = \"1.18.0\"\n"),
	}
	asked := must.Get(spec.Parse(text))(t)
	both := must.Get(spec.Parse(text, spec.File{
		Name: "node.d/mirror.toml",
		Data: Mirror{Dir: "/srv/mirror"}.spec(asked, "dnf", print),
	}))(t)
	w, err := wantedPackages(drivers.New(nil), both, f)
	must.OK(t, err)
	if len(w.repos) != 1 || w.repos[0].Signed != packages.SignedMetadata || !w.repos[0].Whole || w.stream != "" || len(w.enables()) > 0 {
		t.Errorf("for dnf: repositories %+v, stream %q, enabled %v", w.repos, w.stream, w.enables())
	}
	f.OS = facts.OS{ID: "debian", Version: "12"}

	s = parse("format = 1\n[driver]\nversion = \"580.95.05\"\nsource = \"runfile\"\n[driver.runfile]\nurl = \"https://x.example/a/NVIDIA.run\"\nsha256 = \"" + strings.Repeat("ab", 32) + "\"\n")
	w, err = wantedPackages(drivers.New(nil), s, f)
	must.OK(t, err)
	check.That(t, s.Driver.Runfile.URL == "file:///srv/mirror/NVIDIA.run" && len(w.repos) == 1 && w.repos[0].URL == "file:///srv/mirror",
		"a runfile at %q, what builds its modules from %+v", s.Driver.Runfile.URL, w.repos)
}

// TestOneURLForBothSections: apt refuses one URL with two keyrings, also where only one of the
// sections says that the key signs the metadata, as apt's always do.
func TestOneURLForBothSections(t *testing.T) {
	repo := "url = \"https://mirror.example/nvidia\"\nkey = \"/srv/key.asc\"\n" +
		"fingerprint = \"" + strings.Repeat("AB", 20) + "\"\n"
	s := must.Get(spec.Parse(spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n[driver]\nversion = \"580.95.05\"\n[driver.repo]\n" + repo +
			"[toolkit]\nversion = \"1.18.0\"\n[toolkit.repo]\nsignature = \"metadata\"\n" + repo),
	}))(t)
	f := facts.Facts{
		OS:     facts.OS{ID: "debian", Version: "12"},
		Arch:   "amd64",
		Kernel: facts.Kernel{Installed: []string{"6.1.0-9-amd64"}},
	}

	w := must.Get(wantedPackages(drivers.New(nil), s, f))(t)
	check.Equal(t, len(w.repos), 1, "repositories:")
}

// TestMirrorForRunfile: what builds a runfile's modules comes from the mirror as the part of
// node.toml says that mirror writes: for dnf its key signs the lists, and the packages have their
// vendors' signatures.
func TestMirrorForRunfile(t *testing.T) {
	text := spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n[driver]\nversion = \"580.95.05\"\nsource = \"runfile\"\n" +
			"[driver.runfile]\nurl = \"https://x.example/NVIDIA.run\"\n" +
			"sha256 = \"" + strings.Repeat("ab", 32) + "\"\n"),
	}
	asked := must.Get(spec.Parse(text))(t)
	s := must.Get(spec.Parse(text, spec.File{
		Name: "node.d/mirror.toml",
		Data: Mirror{Dir: "/srv/mirror"}.spec(asked, "dnf", strings.Repeat("AB", 20)),
	}))(t)
	f := facts.Facts{
		OS:     facts.OS{ID: "rhel", Version: "9.4", Like: []string{"fedora"}},
		Arch:   "amd64",
		Kernel: facts.Kernel{Installed: []string{"5.14.0-427.13.1.el9_4.x86_64"}},
		Files:  map[string][]byte{"/srv/mirror/" + packages.MirrorLock: nil},
	}

	w := must.Get(wantedPackages(drivers.New(nil), s, f))(t)
	must.That(t, len(w.repos) == 1, "repositories: %+v", w.repos)
	check.Equal(t, w.repos[0].Signed, packages.SignedMetadata, "the key signs")
}

// TestMirrorIsReplaced: a new folder that is gone is an error, and the next run restores the old one.
func TestMirrorIsReplaced(t *testing.T) {
	m := Mirror{Dir: "/srv/mirror"}
	for name, x := range map[string]struct {
		files string
		fails bool
	}{
		"the first":  {"-- srv/.gpuadm-mirror-new/list --\nnew\n", false},
		"the second": {"-- srv/mirror/list --\nold\n-- srv/.gpuadm-mirror-new/list --\nnew\n", false},
		"gone":       {"-- srv/mirror/list --\nold\n", true},
	} {
		n := must.Get(simhost.New([]byte(x.files)))(t)
		err := m.replaceOld(n)
		check.That(t, (err != nil) == x.fails, "%s: %v", name, err)

		must.OK(t, m.restoreOld(n))
		list := string(must.Get(n.ReadFile("/srv/mirror/list"))(t))
		want := "new\n"
		if x.fails {
			want = "old\n"
		}
		check.Equal(t, list, want, "%s: the mirror's list", name)
	}
}

// TestMirrorOfOthers: what signs, and what is signed, is root's alone: a key that another user owns
// or reads, and a folder, or what a killed run has left beside it, that another user can write to,
// are refused before anything is written.
func TestMirrorOfOthers(t *testing.T) {
	_, secret, err := things.NewSigner()
	must.OK(t, err)
	m := Mirror{Dir: "/srv/mirror", Key: "/srv/mirror.key"}
	for _, c := range []struct {
		name string
		attr host.Attr
		want string
	}{
		{m.Key, host.Attr{Mode: 0o600}, ""},
		{m.Key, host.Attr{Mode: 0o600, UID: 7}, "user 7 owns it"},
		{m.Key, host.Attr{Mode: 0o640}, "other users can read it"},
		{m.Key, host.Attr{Mode: 0o604}, "other users can read it"},
		{m.Dir, host.Attr{Mode: 0o755, UID: 7}, "user 7 owns it"},
		{m.newFolder(), host.Attr{Mode: 0o777}, "all users can write to it"},
		{m.oldFolder(), host.Attr{Mode: 0o755, UID: 7}, "user 7 owns it"},
		{"/srv", host.Attr{Mode: 0o777}, "all users can write to /srv"},
	} {
		n := must.Get(simhost.New([]byte("-- srv/other --\n")))(t)
		for _, dir := range []string{m.Dir, m.newFolder(), m.oldFolder()} {
			must.OK(t, n.Mkdir(dir, host.Attr{Mode: 0o755}))
		}
		must.OK(t, n.WriteFile(m.Key, secret, host.Attr{Mode: 0o600}))
		must.OK(t, n.SetAttr(c.name, c.attr))
		touches := n.Touches()
		_, err := m.signer(n)
		if err == nil && c.want != "" {
			err = m.begin(t.Context(), n)
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || n.Touches() != touches {
			t.Errorf("%s %v: %v, want %q", c.name, c.attr, err, c.want)
		}
	}

	n := must.Get(simhost.New([]byte("-- srv/mirror/" + packages.MirrorLock + " --\n{\"format\": 2}\n")))(t)
	err = Mirror{Dir: m.Dir, Key: m.Key, Keep: true}.begin(t.Context(), n)
	check.That(t, err != nil && strings.Contains(err.Error(), "it has format 2") && n.Touches() == 0, "which packages to keep cannot be read: %v", err)
}
