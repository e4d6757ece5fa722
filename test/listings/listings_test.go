// SPDX-License-Identifier: Apache-2.0

package listings

import (
	_ "embed"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

//go:embed testdata/small.list
var small string

func TestParse(t *testing.T) {
	l := must.Get(Parse(small))(t)
	check.That(t, l.String() == "debian12 debian 535.309.01-security" && l.Version == "535.309.01" && l.Pocket == "security" && l.Complete, "it reads as %v", l)
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
		yes, known := c.of.Has(c.name)
		check.That(t, yes == c.yes && known == c.known, "%s of %s: yes %t, known %t", c.name, c.of.Scope, yes, known)
	}
}

// TestAll reads every file, and knows some facts of them again.
func TestAll(t *testing.T) {
	n := len(All())
	check.That(t, n >= 76, "there are %d listings", n)
	got := For("debian12", "nvidia")
	check.That(t, len(got) >= 4, "NVIDIA's repository for Debian 12 has %v", got)
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

	yes, known := find("ubuntu2404", "nvidia", "595.45.04").Has("nvidia-utils")
	check.That(t, !yes && known, "nvidia-utils in 595 of ubuntu2404: %t, known %t", yes, known)
	yes, known = find("ubuntu2204", "nvidia", "550.54.15").Has("nvidia-persistenced")
	check.That(t, !yes && known, "nvidia-persistenced in 550 of ubuntu2204: %t, known %t", yes, known)
	two := find("ubuntu2404", "nvidia", "615.71.09").Named("libnvidia-compute")
	check.That(t, len(two) == 2, "libnvidia-compute 615.71.09 is %v", two)
	check.Equal(t, find("rhel8", "nvidia", "515.48.07").Named("kmod-nvidia-open-dkms")[0].Upstream(), "515.48.07", "3:515.48.07-1.el8 is")
	is := find("ubuntu2604", "ubuntu", "580.173.02").Transitional["libnvidia-compute-570-server"]
	check.That(t, is == "libnvidia-compute-580-server", "libnvidia-compute-570-server of ubuntu2604 draws in %q", is)
}

// TestKnowsNothingOfUs: what gpuadm is held against must not come from gpuadm.
func TestKnowsNothingOfUs(t *testing.T) {
	out := must.Get(exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", ".").Output())(t)
	const us = "github.com/gpuadm/gpuadm/"
	for name := range strings.FieldsSeq(string(out)) {
		check.That(t, !strings.HasPrefix(name, us) || name == us+"test/listings", "it imports %s", name)
	}
}
