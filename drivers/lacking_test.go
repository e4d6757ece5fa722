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
	"github.com/gpuadm/gpuadm/test/must"
)

// TestPackagesAndWithout: the spec adds packages to those of the catalog and leaves others out. It is
// refused if it leaves out a package that nothing asks for.
func TestPackagesAndWithout(t *testing.T) {
	ubuntu := machine("ubuntu", "24.04", "amd64", "2331")
	d := driver("580.95.05")
	d.Packages = []string{"libnvidia-gl-580", "nvidia-modprobe"}
	d.Without = []string{"nvidia-utils-580", "libnvidia-encode-580"}

	choice := choose(t, ubuntu, d)

	check.That(t, slices.Contains(choice.Members, Member{
		Name: "libnvidia-gl-580",
		Role: "spec",
	}), "%+v", choice.Members)
	check.That(t, len(names(choice, "utils")) == 0, "%v was left out", names(choice, "utils"))
	check.That(t, !slices.Contains(choice.Extras, "libnvidia-encode-580"), "%v", choice.Extras)
	check.That(t, slices.Contains(choice.Extras, "nvidia-modprobe"), "%v", choice.Extras)

	d.Without = []string{"nvidia-utils-590"}
	_, err := Choose(Load(), ubuntu, d)
	check.That(t, err != nil && strings.HasPrefix(err.Error(), "cannot leave out package nvidia-utils-590: "), "%v", err)
}

// TestLackingIsSaid: a repository that the machine does not enable is named with the command of this
// distribution, and only until there is a driver.
func TestLackingIsSaid(t *testing.T) {
	debian12 := machine("debian", "12", "amd64", "2331")
	ubuntu := machine("ubuntu", "24.04", "amd64", "2331")
	rocky := machine("rocky", "9.6", "amd64", "2331")
	distro := func(version string) spec.Driver {
		return with(driver(version), "source", "distro")
	}

	aptHas := func(components string) map[string]string {
		return map[string]string{"/etc/apt/sources.list": "deb http://archive.example/ x " + components + "\n"}
	}
	crbOff := map[string]string{"/etc/yum.repos.d/rocky.repo": "[crb]\nbaseurl=x\nenabled=0\n"}

	for _, tt := range []struct {
		name    string
		machine hardware.Machine
		driver  spec.Driver
		files   map[string]string
		says    []string
	}{
		{"fresh Rocky 9", rocky, driver("580"), crbOff, []string{
			"depend on the repository epel, and this machine does not enable it: dnf install epel-release; or write enable_needed = true",
			"the repository crb, and this machine does not enable it: dnf config-manager --set-enabled crb;",
		}},
		{"RHEL 10", machine("rhel", "10.0", "amd64", "2331"), driver("580"), nil, []string{
			"epel-release-latest-10.noarch.rpm",
			"subscription-manager repos --enable=codeready-builder-for-rhel-10-x86_64-rpms",
		}},
		{"Rocky 9 with a mirror", rocky, mirrored("580"), nil, nil},
		{"Debian 12", debian12, driver("580"), aptHas("main"), []string{"the component contrib,"}},
		{
			"Debian's own", debian12, distro("535"), aptHas("main"),
			[]string{"the components contrib, non-free, non-free-firmware,"},
		},
		{"Ubuntu's own", ubuntu, distro("580"), aptHas("main"), []string{"the component restricted,"}},
		{
			"Ubuntu's own with NVSwitches", machine("ubuntu", "24.04", "amd64", "2330", "0680:22a3"),
			distro("580"), aptHas("main restricted"),
			[]string{"the component multiverse,"},
		},
		// The modules of 595 for each kernel are in restricted.
		{"Ubuntu's own 595", ubuntu, distro("595"), aptHas("main"), []string{"the components restricted, multiverse,"}},
		{"Ubuntu, NVIDIA's", ubuntu, driver("580"), aptHas("main"), nil},
		{"AL2023, Amazon's", machine("amzn", "2023", "amd64", "2331"), distro("580"), nil, []string{
			"the repository amazonlinux-nvidia, and this machine does not enable it: dnf install nvidia-release",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := facts.Facts{
				OS:      facts.OS{ID: tt.machine.ID, Version: tt.machine.Version},
				Arch:    tt.machine.Arch,
				Modules: &facts.Modules{},
				Files:   map[string][]byte{},
			}
			for name, text := range tt.files {
				f.Files[name] = []byte(text)
			}
			choice := choose(t, tt.machine, tt.driver)

			said := choice.lacking(tt.driver, f)
			must.That(t, len(said) == len(tt.says), "%q, want %q", said, tt.says)
			for i, want := range tt.says {
				check.Has(t, said[i], want, "it says")
			}

			f.Modules.Libraries = []facts.Library{{}}
			tt.driver.Repo.EnableNeeded = false
			said = choice.lacking(tt.driver, f)
			check.That(t, said == nil, "with a driver: %q", said)
		})
	}
}
