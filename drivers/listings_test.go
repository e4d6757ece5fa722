// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/listings"
)

// The machines that every listing is held against: with NVSwitches, without, with NVLink 5, and
// with IMEX.
var matrixGPUs = []struct {
	name string
	gpus []string
	arch string
}{
	{"H100", []string{"2330", "0680:22a3"}, "amd64"},
	{"T4", []string{"1eb8"}, "amd64"},
	{"B200", []string{"2901"}, "amd64"},
	{"GB200", []string{"2941"}, "arm64"},
}

// distroOf is the os-release of a listing's distribution.
func distroOf(name string) (id, version string) {
	m := regexp.MustCompile(`^([a-z]+)([0-9]*)(-devel)?$`).FindStringSubmatch(name)
	switch m[1] {
	case "ubuntu":
		if m[2] == "" {
			return "", "" // a release in development
		}
		return "ubuntu", m[2][:2] + "." + m[2][2:]
	case "rhel":
		return "rocky", m[2] + ".4" // Red Hat's own: see TestListings
	case "amzn":
		return "amzn", m[2]
	case "azl":
		return "azurelinux", m[2] + ".0"
	}

	return m[1], m[2]
}

// sourceOf is what a spec says to have a listing's repository.
func sourceOf(repository string) string {
	if repository == "nvidia" {
		return "nvidia"
	}
	return "distro"
}

var wholeVersion = regexp.MustCompile(`^[0-9]+\.[0-9.]+$`)

// TestListings holds what is asked for against every listing: of a name that a listing knows to be
// absent nothing may be asked, on no machine. What a partial listing does not say proves nothing:
// see TestMembersWereSeen.
func TestListings(t *testing.T) {
	c := Load()
	asked := 0
	for _, l := range listings.All() {
		id, version := systemOf(l)
		isOther := l.Repository == "microsoft" || l.Pocket == "backports"
		if id == "" || isOther || !wholeVersion.MatchString(l.Version) {
			continue
		}

		for _, g := range matrixGPUs {
			d := driver(l.Version)
			d.Source = sourceOf(l.Repository)
			if id == "rocky" && strings.HasPrefix(version, "10") {
				d = mirrored(l.Version)
			}
			ch, err := Choose(c, machine(id, version, g.arch, g.gpus...), d)
			if err != nil {
				continue // refused in a sentence: testdata has it
			}
			for _, p := range ch.Members {
				if p.Lockstep {
					asked++
					isListed(t, l, g.name, ch, p)
				}
			}
		}
	}

	check.That(t, asked >= 400, "only %d names were held against listings", asked)
}

// systemOf is the os-release of the machines that a listing is for; "" if it is not known.
func systemOf(l listings.Listing) (id, version string) {
	if l.Distro == "debian" {
		return "debian", "12"
	}
	id, version = distroOf(l.Distro)
	if id != "" && l.Repository == "redhat" {
		id = "rhel"
	}
	return id, version
}

// isListed wants a listing to have a package that is asked for, and not as one that only leads to the
// package of another branch.
func isListed(t *testing.T, l listings.Listing, gpu string, ch Choice, p Member) {
	t.Helper()
	has, known := l.Has(p.Name)
	isMissing := known && !has && !elsewhere(l, p.Name)
	check.That(t, !isMissing, "%s, %s: %s is asked for as %s, and the listing does not have it", l, gpu, p.Name, p.Role)

	to, isTransitional := l.Transitional[p.Name]
	leads := strings.Contains(to, branchText(l.Version)) || ch.Source == SourceUbuntu
	check.That(t, !isTransitional || leads, "%s, %s: %s is transitional to %s", l, gpu, p.Name, to)
}

// elsewhere says whether another pocket of the same archive has a package: Debian's security pocket
// has what changed alone.
func elsewhere(l listings.Listing, name string) bool {
	return slices.ContainsFunc(listings.For(l.Distro, l.Repository), func(o listings.Listing) bool {
		has, _ := o.Has(name)
		return l.Pocket != "" && o.Pocket != l.Pocket && has && branchText(o.Version) == branchText(l.Version)
	})
}

func branchText(version string) string { b, _, _ := strings.Cut(version, "."); return b }

// notListed are names that no listing of their sources and branches has, and why they are asked for
// all the same.
var notListed = map[string]string{
	"ubuntu nvidia-imex-{b}":      "https://packages.ubuntu.com/source/noble/nvidia-imex-550, -570, -575, -595; https://github.com/canonical/apt-packaging-imex",
	"nvidia nvidia-imex-{b}":      "debian12: named as in NVIDIA's repositories for Ubuntu (ubuntu2404 570.124.06), which have the same companion packages",
	"nvidia nvidia-imex":          "debian12: the same (ubuntu2404 580.126.20)",
	"nvidia nvidia-fabricmanager": "debian12: the same (ubuntu2404 580.95.05)",
}

// TestMembersWereSeen wants each row that every machine depends on to have been seen: a listing of
// one of its distributions and sources, of a branch between the row's bounds, has the name.
func TestMembersWereSeen(t *testing.T) {
	for _, s := range Load().Sets {
		for _, row := range s.Members {
			if row.Extra || row.Own || row.Role == "gds" || notListed[s.Sources[0]+" "+row.Name] != "" && (s.Sources[0] == "ubuntu" || slices.Contains(s.Distros, "debian12")) {
				continue
			}
			seen := slices.ContainsFunc(listings.All(), func(l listings.Listing) bool {
				branch, err := strconv.Atoi(branchText(l.Version))
				repository := l.Repository
				distro := slices.ContainsFunc(s.Distros, func(d string) bool {
					return d == l.Distro || l.Distro == "debian" && strings.HasPrefix(d, "debian")
				})
				if err != nil || !row.in(branch) || !distro || !slices.Contains(s.Sources, repository) {
					return false
				}
				name := strings.NewReplacer("{64k}", "", "{b}", branchText(l.Version), "{v}", l.Version, "{kv}", "5.14.0-687.54.1", "{k}", "6.8.0-106-generic").Replace(row.Name)
				has, _ := l.Has(name)
				return has
			})
			check.That(t, seen, "%v %v: no listing of branches %d to %d has %s", s.Sources, s.Distros, row.First, row.Last, row.Name)
		}
	}
}

// TestFamilyKnowsTheListings wants all that listings have in the driver's version to be taken for a
// part of the driver, and nothing else.
func TestFamilyKnowsTheListings(t *testing.T) {
	f := Choice{
		Source:     SourceNVIDIA,
		OwnVersion: []string{"nvidia-settings", "nvidia-modprobe", "nvidia-persistenced", "nvidia-xconfig"},
	}.Family()
	others := regexp.MustCompile(`^(cuda-compat-.*|libxnvctrl.*|xorg-x11-nvidia|libnvsdm-dev.*|linux-.*|kmod-nvidia-[0-9].*)$`)
	for _, l := range listings.All() {
		for _, p := range l.Packages {
			if p.Version == "" || !wholeVersion.MatchString(p.Upstream()) || others.MatchString(p.Name) || slices.Contains(f.OwnVersion, p.Name) {
				continue
			}
			branch, _ := strconv.Atoi(branchText(p.Upstream()))
			of := branch >= 450 && branch < 1000
			check.That(t, f.Has(p.Name, p.Version) == of, "%s: %s %s: part of the driver: %v", l, p.Name, p.Version, !of)
		}
	}
}
