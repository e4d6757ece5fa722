// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/alloc"
)

func TestSources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, text string
		want       []string // names of lists
		keys       []string
	}{
		{
			"cuda.list", "# x\ndeb [signed-by=/usr/share/keyrings/cuda.gpg arch=amd64] https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/ /\n",
			[]string{"developer.download.nvidia.com_compute_cuda_repos_ubuntu2204_x86%5f64_"},
			[]string{"/usr/share/keyrings/cuda.gpg"},
		},
		{"toolkit.list", "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n", []string{"nvidia.github.io_libnvidia-container_stable_deb_amd64_"}, nil},
		{
			"debian.sources", "Types: deb\nURIs: http://debian.example/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\nSigned-By: /a.gpg\n\nEnabled: no\nTypes: deb\nURIs: http://x\nSuites: y\n",
			[]string{"debian.example_debian_dists_bookworm_", "debian.example_debian_dists_bookworm-updates_"},
			[]string{"/a.gpg"},
		},
		{"file.list", "deb file:/srv/repo stable main\n", []string{"_srv_repo_dists_stable_"}, nil},
		{"user.list", "deb http://me:secret@host:8077/r ./\n", []string{"host:8077_r_._"}, nil},
	} {
		var got []string
		for _, s := range parseSources(c.file, []byte(c.text), amd64) {
			got = append(got, s.list())
			if !slices.Equal(s.signedBy, c.keys) {
				t.Errorf("%s: keys %v", c.file, s.signedBy)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.file, got, c.want)
		}
	}
}

func FuzzSources(f *testing.F) {
	f.Add("Types: deb\nURIs: x y\nSuites: /\n", true)
	f.Add("deb [signed-by=/a] http://x y\n", false)
	f.Add("Types:"+strings.Repeat(" deb", 300)+"\nURIs:"+strings.Repeat(" x", 300)+"\nSuites:"+strings.Repeat(" y", 300)+"\nComponents: z\n", true)
	f.Add("URIs:\n"+strings.Repeat(" x\n", many), true)
	f.Fuzz(func(t *testing.T, text string, deb822 bool) {
		file := "a.list"
		if deb822 {
			file = "a.sources"
		}
		var all []source
		alloc.Most(t, 400, len(text), func() { all = parseSources(file, []byte(text), amd64) })
		for _, s := range all {
			if strings.ContainsAny(s.list(), "/ \n") {
				t.Errorf("%q", s.list())
			}
		}
	})
}

func amd64() string { return "amd64" }

// A component that another vendor's archive has says nothing about the distribution's.
func TestComponentOfAnotherArchive(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{
		"/etc/apt/sources.list.d/debian.sources":  []byte("Types: deb\nURIs: http://debian.example/debian\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"),
		"/etc/apt/sources.list.d/virtualbox.list": []byte("deb [arch=amd64 signed-by=/usr/share/keyrings/oracle-virtualbox-2016.gpg] https://download.virtualbox.org/virtualbox/debian bookworm contrib\n"),
	}
	if lacks := Lacking(packages.System{ID: "debian", Version: "12", Arch: "amd64", Files: files}, []string{"contrib"}); len(lacks) != 1 {
		t.Errorf("contrib of Debian's archive is said to be enabled: %+v", lacks)
	}
}

// TestLackingComponents: both forms of apt's sources, and entries of others that are left alone.
func TestLackingComponents(t *testing.T) {
	t.Parallel()
	const deb822 = "Types: deb\nURIs: http://debian.example/debian\nSuites: trixie trixie-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\nTypes: deb\nURIs: https://apt.example/\nSuites: trixie\nComponents: main\nSigned-By: /usr/share/keyrings/example.gpg\n"
	for _, x := range []struct {
		what, file, data string
		needs            []string
		try, has, not    string
	}{
		{"one line", "/etc/apt/sources.list", "deb [arch=amd64,i386 trusted=yes] http://debian.example/debian bookworm main\n# deb x y contrib\n", []string{"contrib"}, "add contrib behind main in /etc/apt/sources.list, then apt-get update", "URIs: http://debian.example/debian\nSuites: bookworm\nComponents: contrib\narchitectures: amd64 i386\ntrusted: yes\n", "Components: main"},
		{"deb822", "/etc/apt/sources.list.d/debian.sources", deb822, []string{"contrib", "non-free"}, "add contrib non-free behind main in /etc/apt/sources.list.d/debian.sources", "Suites: trixie-updates\nComponents: contrib non-free\nsigned-by: /usr/share/keyrings/debian-archive-keyring.gpg\n", "apt.example"},
		{"all there", "/etc/apt/sources.list", "deb http://debian.example/debian bookworm main contrib\n", []string{"contrib"}, "", "", ""},
		{"another's alone", "/etc/apt/sources.list.d/x.sources", strings.SplitN(deb822, "\n\n", 2)[1], []string{"contrib"}, "add contrib behind main in apt's sources", "", "apt.example"},
	} {
		f := packages.System{ID: "debian", Arch: "amd64", Files: map[string][]byte{x.file: []byte(x.data)}}
		all := Lacking(f, x.needs)
		if len(all) == 0 {
			all = []packages.Lack{{}}
		}
		l := all[0]
		if !strings.HasPrefix(l.Try, x.try) || (l.Try == "") != (x.try == "") || !strings.Contains(string(l.Data), x.has) || x.not != "" && strings.Contains(string(l.Data), x.not) {
			t.Errorf("%s: %q\n%s", x.what, l.Try, l.Data)
		}
		if (l.Unavailable() == nil) != (x.has != "") && x.try != "" {
			t.Errorf("%s: %v", x.what, l.Unavailable())
		}
	}
}
