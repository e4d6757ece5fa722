// SPDX-License-Identifier: Apache-2.0

package apt

import (
	_ "embed"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
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
			check.That(t, slices.Equal(s.signedBy, c.keys), "%s: keys %v", c.file, s.signedBy)
		}

		check.That(t, slices.Equal(got, c.want), "%s: %v, want %v", c.file, got, c.want)
	}
}

// TestSourcesSwitchedOff: apt leaves out an entry by each of its words for no, as gpuadm must: it
// would refuse two keys for one source, of which apt reads one.
func TestSourcesSwitchedOff(t *testing.T) {
	t.Parallel()
	for word, left := range map[string]int{
		"no": 0, "False": 0, "without": 0, "off": 0, "Disable": 0, "0": 0,
		"yes": 1, "on": 1, "1": 1,
	} {
		text := "Enabled: " + word + "\nTypes: deb\nURIs: http://x\nSuites: y\n"
		got := parseSources("a.sources", []byte(text), amd64)
		check.Equal(t, len(got), left, "%s: entries", word)
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
	lacks := Lacking(packages.System{
		ID:      "debian",
		Version: "12",
		Arch:    "amd64",
		Files:   files,
	}, []string{"contrib"})
	check.That(t, len(lacks) == 1, "contrib of Debian's archive is said to be enabled: %+v", lacks)
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
		{"one line", "/etc/apt/sources.list", "deb [arch=amd64,i386 trusted=yes] http://debian.example/debian bookworm main\n# deb x y contrib\n", []string{"contrib"}, "add contrib behind main in /etc/apt/sources.list, then sudo apt-get update", "URIs: http://debian.example/debian\nSuites: bookworm\nComponents: contrib\narchitectures: amd64 i386\ntrusted: yes\n", "Components: main"},
		{"deb822", "/etc/apt/sources.list.d/debian.sources", deb822, []string{"contrib", "non-free"}, "add contrib non-free behind main in /etc/apt/sources.list.d/debian.sources", "Suites: trixie-updates\nComponents: contrib non-free\nsigned-by: /usr/share/keyrings/debian-archive-keyring.gpg\n", "apt.example"},
		{"all there", "/etc/apt/sources.list", "deb http://debian.example/debian bookworm main contrib\n", []string{"contrib"}, "", "", ""},
		{"more than are read", "/etc/apt/sources.list", strings.Repeat("deb http://a/ b main\n", 60_000) + "deb http://a/ b contrib\n", []string{"contrib"}, "add contrib behind main", "URIs: http://a/\n", ""},
		{"another's alone", "/etc/apt/sources.list.d/x.sources", strings.SplitN(deb822, "\n\n", 2)[1], []string{"contrib"}, "add contrib behind main in apt's sources", "", "apt.example"},
	} {
		f := packages.System{
			ID:    "debian",
			Arch:  "amd64",
			Files: map[string][]byte{x.file: []byte(x.data)},
		}
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

// TestComponentOfSourceCode: an entry of source code brings no packages, and is not repeated beside
// that of the packages, as Debian's installer writes both.
func TestComponentOfSourceCode(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"sources.list": "deb http://debian.example/debian bookworm main\n" +
			"deb-src http://debian.example/debian bookworm main contrib\n",
		"sources.list.d/debian.sources": "Types: deb\nURIs: http://debian.example/debian\nSuites: bookworm\nComponents: main\n\n" +
			"Types: deb-src\nURIs: http://debian.example/debian\nSuites: bookworm\nComponents: main contrib\n",
		"sources.list.d/both.sources": "Types: deb deb-src\nURIs: http://debian.example/debian\nSuites: bookworm\nComponents: main\n",
	} {
		lacks := Lacking(packages.System{
			ID:      "debian",
			Version: "12",
			Arch:    "amd64",
			Files:   map[string][]byte{"/etc/apt/" + name: []byte(text)},
		}, []string{"contrib"})
		must.That(t, len(lacks) == 1, "%s: contrib is said to be enabled: %+v", name, lacks)
		check.Equal(t, strings.Count(string(lacks[0].Data), "Suites: bookworm\n"), 1, "%s: entries in\n%s", name, lacks[0].Data)
	}
}

// Of apt 2.6.2 on Debian 12.
//
//go:embed testdata/policy.txt
var policy string

func TestPolicy(t *testing.T) {
	t.Parallel()
	want := map[string][]packages.Offer{
		"bash": {{
			Version:  "5.2.15-2+b13",
			Priority: 500,
			From:     []string{"http://debian.example/debian bookworm/main amd64"},
		}},
		"nvidia-driver": {
			{Version: "580.95.05-1", Priority: 1001, From: []string{"http://127.0.0.1:33977"}},
			{Version: "535.247.01-1~deb12u1", Priority: 500, From: []string{"http://debian.example/debian bookworm/non-free amd64", "http://debian.example/debian-security bookworm-security/non-free amd64"}},
		},
	}
	got := parsePolicy(policy)
	check.That(t, reflect.DeepEqual(got, want), "%+v", got)
}

func FuzzPolicy(f *testing.F) {
	f.Add(policy)
	f.Add("a:\n *** \n     \n        x")
	f.Add(strings.Repeat("a:\n *** 1 1\n  1 x\n", many))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for name, offers := range parsePolicy(out) {
				for _, o := range offers {
					if o.Version == "" || len(o.From) == 0 {
						t.Errorf("%q: %+v", name, o)
					}
				}
			}
		})
	})
}

// many is how often what is hostile once is there in a seed: what grows with the square of the
// input shows.
const many = 20_000

// simulation is what apt 2.6.1 and apt 3.0.3 print, but for the names.
//
//go:embed testdata/simulation.txt
var simulation string

func TestSimulation(t *testing.T) {
	t.Parallel()
	want := []packages.Move{{Name: "gone"}, {Name: "nvidia-kernel-open"}, {
		Name:    "huge",
		Version: "1",
	}, {Name: "libfoo:i386", Version: "1.0-1"}, {Name: "libc6", Version: "2.36-9+deb12u13"}, {Name: "local", Version: "0.9"}}
	check.List(t, parseSimulation(simulation), want, "got")
	check.Equal(t, needsOf(simulation), needs{12_300_000, 51_200}, "needs")
	check.Equal(t, needsOf("Need to get 0 B of archives.\nAfter this operation, 99 B disk space will be freed.\n"), needs{}, "needs")
}

func FuzzSimulation(f *testing.F) {
	f.Add(simulation)
	f.Add("The following NEW packages will be installed:\n" + strings.Repeat("   a (1)\n", many))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for _, m := range parseSimulation(out) {
				if m.Name == "" {
					t.Errorf("a move of nothing: %+v", m)
				}
			}
		})
	})
}
