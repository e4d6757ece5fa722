// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package listings

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

const small = `# listing: debian12 debian 535.309.01-security
# source: a page
# seen: pocket (driver packages of this pocket)
# note: a word
libcuda1 535.309.01-0+deb12u1 amd64
linux-modules-nvidia-{k} -
old 1-1
depends: libcuda1: nvidia-alternative (= 535.309.01-0+deb12u1), libc6 (>= 2.34)
component: libcuda1: non-free
transitional: old -> new
absent: libnvidia-gpucomp
`

func TestParse(t *testing.T) {
	l := must.Get(Parse(small))(t)
	if l.String() != "debian12 debian 535.309.01-security" || l.Version != "535.309.01" || l.Pocket != "security" || !l.Complete {
		t.Errorf("it reads as %v", l)
	}
	if l.VersionOf("libcuda1") != "535.309.01-0+deb12u1" || l.ComponentOf("libcuda1") != "non-free" || l.Packages[0].Upstream() != "535.309.01" ||
		l.Transitional["old"] != "new" || !strings.HasPrefix(l.Depends["libcuda1"], "nvidia-alternative (= ") || l.Notes[0] != "a word" {
		t.Errorf("it reads as %v", l)
	}
	part := must.Get(Parse(strings.Replace(small, "pocket (", "part (", 1)))(t)
	for _, c := range []struct {
		of         Listing
		name       string
		yes, known bool
	}{
		{l, "libcuda1", true, true},
		{l, "linux-modules-nvidia-6.8.0-1-generic", true, true},
		{l, "libnvidia-gpucomp", false, true},
		{l, "another", false, true},
		{part, "libnvidia-gpucomp", false, true},
		{part, "another", false, false},
	} {
		if yes, known := c.of.Has(c.name); yes != c.yes || known != c.known {
			t.Errorf("%s of %s: yes %t, known %t", c.name, c.of.Scope, yes, known)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for what, change := range map[string][2]string{
		"no scope":             {"# seen: pocket", "# seen: complete"},
		"another repository":   {"debian12 debian", "debian12 elsewhere"},
		"no source":            {"# source: a page", "# source: "},
		"an unknown word":      {"component:", "suggests:"},
		"an empty line":        {"# note: a word", ""},
		"a comment":            {"# note: a word", "# a word"},
		"four words":           {"old 1-1", "old 1-1 amd64 held"},
		"an architecture":      {"old 1-1", "old 1-1 i386"},
		"a package twice":      {"old 1-1", "old 1-1\nold 1-1"},
		"a field twice":        {"component: libcuda1: non-free", "component: libcuda1: non-free\ncomponent: libcuda1: contrib"},
		"a field of no one":    {"component: libcuda1", "component: libcuda2"},
		"absent and there":     {"absent: libnvidia-gpucomp", "absent: libcuda1"},
		"a space at the end":   {"amd64\n", "amd64 \n"},
		"transitional to none": {"old -> new", "old"},
	} {
		text := strings.Replace(small, change[0], change[1], 1)
		if text == small {
			t.Errorf("%s: nothing was changed", what)
		}
		if l, err := Parse(text); err == nil {
			t.Errorf("%s: it reads as %v", what, l)
		}
	}
	for _, text := range []string{"", "# listing: debian12 debian 1\n# source: a\n# seen: part\n"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q can be read", text)
		}
	}
}

// TestAll reads every file, and knows some facts of them again.
func TestAll(t *testing.T) {
	if n := len(All()); n < 76 {
		t.Errorf("there are %d listings", n)
	}
	if got := For("debian12", "nvidia"); len(got) < 4 {
		t.Errorf("NVIDIA's repository for Debian 12 has %v", got)
	}
	find := func(distro, repository, version string) Listing {
		t.Helper()
		for _, l := range For(distro, repository) {
			if l.Version == version {
				return l
			}
		}
		t.Fatalf("there is no listing %s %s %s", distro, repository, version)
		return Listing{}
	}
	if yes, known := find("ubuntu2404", "nvidia", "595.45.04").Has("nvidia-utils"); yes || !known {
		t.Errorf("nvidia-utils in 595 of ubuntu2404: %t, known %t", yes, known)
	}
	if yes, known := find("ubuntu2204", "nvidia", "550.54.15").Has("nvidia-persistenced"); yes || !known {
		t.Errorf("nvidia-persistenced in 550 of ubuntu2204: %t, known %t", yes, known)
	}
	if two := find("ubuntu2404", "nvidia", "615.71.09").Named("libnvidia-compute"); len(two) != 2 {
		t.Errorf("libnvidia-compute 615.71.09 is %v", two)
	}
	if is := find("rhel8", "nvidia", "515.48.07").Named("kmod-nvidia-open-dkms")[0].Upstream(); is != "515.48.07" {
		t.Errorf("3:515.48.07-1.el8 is %q", is)
	}
	if is := find("ubuntu2604", "ubuntu", "580.173.02").Transitional["libnvidia-compute-570-server"]; is != "libnvidia-compute-580-server" {
		t.Errorf("libnvidia-compute-570-server of ubuntu2604 draws in %q", is)
	}
}

// TestKnowsNothingOfUs: what gpuadm is held against must not come from gpuadm.
func TestKnowsNothingOfUs(t *testing.T) {
	out := must.Get(exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", ".").Output())(t)
	const us = "github.com/gpuadm/gpuadm/"
	for name := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(name, us) && name != us+"test/listings" {
			t.Errorf("it imports %s", name)
		}
	}
}

// FuzzParse: whatever the text, it is read or refused, and what is read names what it tells of.
func FuzzParse(f *testing.F) {
	f.Add(small)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Parse(text)
		if err != nil {
			return
		}
		for _, p := range l.Packages {
			if yes, known := l.Has(p.Name); (!yes || !known) && !strings.ContainsAny(p.Name, "{*") {
				t.Errorf("%s is not found: %v", p.Name, l)
			}
			_ = p.Upstream()
		}
	})
}
