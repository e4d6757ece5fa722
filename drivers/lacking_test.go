// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
)

// The spec adds packages to those of the catalog and leaves others out; a name that is not asked
// for anyway is refused.
func TestPackagesAndWithout(t *testing.T) {
	d := driver("580.95.05")
	d.Packages, d.Without = []string{"libnvidia-gl-580", "nvidia-modprobe"}, []string{"nvidia-utils-580", "libnvidia-encode-580"}
	ch := choose(t, machine("ubuntu", "24.04", "amd64", "2331"), d)
	if !slices.Contains(ch.Members, Member{Name: "libnvidia-gl-580", Role: "spec"}) || len(names(ch, "utils")) > 0 || slices.Contains(ch.Extras, "libnvidia-encode-580") || !slices.Contains(ch.Extras, "nvidia-modprobe") {
		t.Errorf("%+v", ch)
	}
	d.Without = []string{"nvidia-utils-590"}
	_, err := Choose(Load(), machine("ubuntu", "24.04", "amd64", "2331"), d)
	check.That(t, err != nil && strings.HasPrefix(err.Error(), "cannot leave out package nvidia-utils-590: "), "%v", err)
}

// TestLackingIsSaid: by name, with the command of this distribution, and only until there is a
// driver.
func TestLackingIsSaid(t *testing.T) {
	const crb = "[crb]\nbaseurl=x\nenabled=0\n"
	const main = "deb http://archive.example/ x main\n"
	for _, x := range []struct {
		what  string
		m     hardware.Machine
		d     spec.Driver
		files map[string]string
		says  []string
	}{
		{"fresh Rocky 9", machine("rocky", "9.6", "amd64", "2331"), driver("580"), map[string]string{"/etc/yum.repos.d/rocky.repo": crb}, []string{"depend on the repository epel, and this machine does not enable it: dnf install epel-release; or write enable_needed = true", "the repository crb, and this machine does not enable it: dnf config-manager --set-enabled crb;"}},
		{"RHEL 10", machine("rhel", "10.0", "amd64", "2331"), driver("580"), nil, []string{"epel-release-latest-10.noarch.rpm", "subscription-manager repos --enable=codeready-builder-for-rhel-10-x86_64-rpms"}},
		{"Rocky 9 with a mirror", machine("rocky", "9.6", "amd64", "2331"), mirrored("580"), nil, nil},
		{"Debian 12", machine("debian", "12", "amd64", "2331"), driver("580"), map[string]string{"/etc/apt/sources.list": main}, []string{"the component contrib,"}},
		{"Debian's own", machine("debian", "12", "amd64", "2331"), with(driver("535"), "source", "distro"), map[string]string{"/etc/apt/sources.list": main}, []string{"the components contrib, non-free, non-free-firmware,"}},
		{"Ubuntu's own", machine("ubuntu", "24.04", "amd64", "2331"), with(driver("580"), "source", "distro"), map[string]string{"/etc/apt/sources.list": main}, []string{"the component restricted,"}},
		{"Ubuntu's own with NVSwitches", machine("ubuntu", "24.04", "amd64", "2330", "0680:22a3"), with(driver("580"), "source", "distro"), map[string]string{"/etc/apt/sources.list": strings.Replace(main, "main", "main restricted", 1)}, []string{"the component multiverse,"}},
		{"Ubuntu's own 595", machine("ubuntu", "24.04", "amd64", "2331"), with(driver("595"), "source", "distro"), map[string]string{"/etc/apt/sources.list": main}, []string{"the components restricted, multiverse,"}}, // its modules for each kernel are in restricted
		{"Ubuntu, NVIDIA's", machine("ubuntu", "24.04", "amd64", "2331"), driver("580"), map[string]string{"/etc/apt/sources.list": main}, nil},
		{"AL2023, Amazon's", machine("amzn", "2023", "amd64", "2331"), with(driver("580"), "source", "distro"), nil, []string{"the repository amazonlinux-nvidia, and this machine does not enable it: dnf install nvidia-release"}},
	} {
		f := facts.Facts{OS: facts.OS{ID: x.m.ID, Version: x.m.Version}, Arch: x.m.Arch, Modules: &facts.Modules{}, Files: map[string][]byte{}}
		for name, data := range x.files {
			f.Files[name] = []byte(data)
		}
		c := choose(t, x.m, x.d)
		message := c.lacking(x.d, f)
		if len(message) != len(x.says) {
			t.Errorf("%s: %q", x.what, message)
			continue
		}
		for i, want := range x.says {
			if !strings.Contains(message[i], want) {
				t.Errorf("%s: %q, want %q", x.what, message[i], want)
			}
		}
		f.Modules.Libraries = []facts.Library{{}}
		x.d.Repo.EnableNeeded = false
		message = c.lacking(x.d, f)
		check.That(t, message == nil, "%s, with a driver: %q", x.what, message)
	}
}
