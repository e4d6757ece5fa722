// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// sets are all packages of a distribution's repositories, by NAME VERSION.
func sets(t *testing.T, distro string) []Package {
	t.Helper()
	var list []Package
	if slices.Contains([]string{"rhel8", "rhel9", "rhel10", "amzn2023", "azl3"}, distro) {
		groups := must.Get(parts{}.rpmGroups(distro))(t)
		return slices.Concat(groups...)
	}
	pools := must.Get(parts{}.aptPools(distro))(t)
	for _, pool := range pools {
		list = append(list, pool...)
	}
	return list
}

// TestEditionsHold: no package is there twice, and what one needs of the driver is there in that
// version.
func TestEditionsHold(t *testing.T) {
	for _, distro := range Distros() {
		list := sets(t, distro)
		there, named := map[string]bool{}, map[string]bool{}
		for _, p := range list {
			key := p.Name + " " + p.Version
			check.That(t, !there[key], "%s: %s is there twice", distro, key)
			there[key], named[p.Name] = true, true
			for _, provides := range slices.Concat(p.Provides, p.Instead) {
				name, _, _ := strings.Cut(provides, " ")
				named[name] = true
				there[strings.NewReplacer(" (= ", " ", ")", "").Replace(provides)] = true
			}
		}

		for _, p := range list {
			for _, need := range p.Depends {
				any := slices.ContainsFunc(strings.Split(need, " | "), func(need string) bool {
					name, version, exact := strings.Cut(strings.TrimSuffix(need, ")"), " (= ")
					if exact && strings.Contains(version, "-") {
						return there[name+" "+version]
					}
					name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSuffix(need, ":any"), "("), " ")
					return named[name] || name == "dkms" || name == "adduser" || name == "libc6"
				})
				check.That(t, any, "%s: %s %s needs %s, which is not there", distro, p.Name, p.Version, need)
			}
		}
	}
}

// TestEditionsSayWhatListingsSay: facts that the lab's own repositories once had wrong.
func TestEditionsSayWhatListingsSay(t *testing.T) {
	for _, c := range []struct {
		distro, name, version string
		want                  bool
	}{
		{"ubuntu2404", "nvidia-utils", "590.48.01-0ubuntu1", false},
		{"ubuntu2404", "nvidia-compute-utils", "595.71.05-1ubuntu1", false},
		{"ubuntu2404", "libnvidia-compute", "590.48.01-0ubuntu1", true},
		{"ubuntu2404", "libnvidia-compute", "615.71.09-2ubuntu1", true},
		{"ubuntu2404", "libnvidia-gpucomp-570", "570.133.20-0ubuntu1", false},
		{"ubuntu2404", "libnvidia-gpucomp-575", "575.57.08-0ubuntu1", true},
		{"ubuntu2204", "nvidia-persistenced", "550.54.15-0ubuntu1", false},
		{"ubuntu2204", "nvidia-persistenced", "535.183.01-0ubuntu1", false},
		{"ubuntu2204", "nvidia-persistenced", "570.148.08-1ubuntu1", true},
		{"ubuntu2204", "imex", "550.54.15-1", true},
		{"ubuntu2404", "nvidia-fabricmanager", "580.95.05-1", true},
		{"ubuntu2404", "nvidia-fabricmanager-580", "580.95.05-1", false},
		{"ubuntu2404", "nvidia-dkms-580-open", "580.105.08-0ubuntu1", true},
		{"ubuntu2404", "nvidia-dkms-580-open", "580.159.04-1ubuntu1", true},
		{"ubuntu2404", "nvidia-dkms-530", "550.54.15-0ubuntu1", false},
		{"ubuntu2404", "libnvidia-compute-590-server", "590.48.01-0ubuntu0.24.04.5", true},
		{"ubuntu2404", "libnvidia-compute-595-server", "595.71.05-0ubuntu0.24.04.1", true},
		{"ubuntu2404", "nvidia-dkms-580-server-open", "580.159.03-0ubuntu0.24.04.1", true},
		{"ubuntu2604", "libnvidia-compute-570-server", "580.173.02-0ubuntu0.26.04.1", true},
		{"debian12", "libnvidia-gpucomp", "570.172.08-1", true},
		{"debian12", "nvidia-fabricmanager-570", "570.172.08-1", true},
		{"debian12-archive", "nvidia-open-kernel-dkms", "535.261.03-1", true},
		{"debian12-archive", "nvidia-open-kernel-dkms", "535.309.01-0+deb12u1", false},
		{"debian12-archive", "nvidia-alternative", "535.309.01-0+deb12u1", true},
		{"rhel9", "libnvidia-gpucomp", "3:570.172.08-1.el9", false},
		{"rhel9", "libnvidia-gpucomp", "3:580.95.05-1.el9", true},
		{"rhel9", "nvidia-fabricmanager", "580.95.05-1", true},
		{"rhel9", "nvidia-fabric-manager", "570.172.08-1", true},
		{"rhel9", "libnvidia-ml", "3:610.43.02-1.el9", false},
		{"rhel9", "nvidia-driver-common", "3:610.43.02-1.el9", true},
		{"rhel9", "nvidia-fabricmanager", "610.43.02-1.el9", true},
		{"rhel9", "kmod-nvidia-580.178.04-5.14.0-687.54.1", "3:580.178.04-3.el9_8", true},
		{"rhel8", "nvidia-driver-NVML", "3:535.54.03-1.el8", true},
		{"amzn2023", "kmod-nvidia-open-dkms", "3:570.172.08-1.amzn2023", true},
	} {
		has := slices.ContainsFunc(sets(t, c.distro), func(p Package) bool {
			return p.Name == c.name && p.Version == c.version
		})
		check.That(t, has == c.want, "%s: %s %s is there: %t, want %t", c.distro, c.name, c.version, has, c.want)
	}
}

// TestNotOfTheCatalog: what gpuadm is tested with does not come from gpuadm.
func TestNotOfTheCatalog(t *testing.T) {
	out := must.Get(exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", ".").Output())(t)
	const us = "github.com/gpuadm/gpuadm/"
	for name := range strings.FieldsSeq(string(out)) {
		of, ok := strings.CutPrefix(name, us)
		check.That(t, !ok || strings.HasPrefix(of, "test/"), "it imports %s", name)
	}
}
