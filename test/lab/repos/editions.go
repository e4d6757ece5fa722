// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/listings"
)

// edition is one driver version in one repository. Its packages are those of listings; a listing of
// another version gives its names, with the version and the branch replaced.
type edition struct {
	of        string // distribution and repository, as in listings: "ubuntu2404 nvidia"
	version   string // 580.95.05
	epoch     string // "3:"
	revision  string // of the driver's packages, "-0ubuntu1"
	component string // of an archive that has components

	// companion is the revision of packages that must have the driver's version and are built
	// elsewhere: fabric manager, NSCQ, …
	companion string

	// names are the listings that say which packages there are, "ubuntu2404 nvidia 580.159.03". A
	// name that begins with ~ counts for the driver's own packages only.
	names     []string
	relations []string // more listings that say what packages depend on and provide
	without   []string // names that the edition does not have

	named string // the branch in the names, if it is not the version's, as in transitional packages
	draws string // the branch to whose packages all packages of the edition are transitional
	bad   bool   // the module's package cannot be configured: BadDriver
}

// row is a package of an edition before it has files.
type row struct {
	name      string
	version   string
	arch      string
	component string
	own       bool // its version is not the driver's

	depends    string
	preDepends string
	provides   string
	draws      string // the package to which this one is transitional; "?" if it is not known
}

var (
	// companions must have the driver's version and are built elsewhere.
	companions = regexp.MustCompile(`^(cuda-drivers-fabric|nvidia-fabric|libnvidia-nscq|libnvsdm|nvidia-imex|imex|nvlink5)`)
	// others have versions of their own, or lie in another repository of the lab.
	others      = regexp.MustCompile(`container|^cuda-compat|^mft|^collectx|^nvidia-fs|^(dh-)?dkms$|^linux-modules-|\*|^cuda$|^infiniband|^glx-|^nvidia-tesla|^cuda-open`)
	ownVersions = []string{"nvlsm", "nvidia-driver-selinux", "dnf-plugin-nvidia", "egl-wayland2"}

	threeDigits = regexp.MustCompile(`\b\d{3}\b`)
	anyBranch   = regexp.MustCompile(`-(\d{3})(-|$)`)
)

func (e edition) branch() string { return cmp.Or(e.named, branch(e.version)) }

// whole returns the version of a package of the edition, with epoch and revision.
func (e edition) whole(name string) string {
	if companions.MatchString(name) {
		return e.version + e.companion
	}
	return e.epoch + e.version + e.revision
}

// find returns the listing of a name such as "ubuntu2404 nvidia 580.159.03".
func find(name string) (listings.Listing, error) {
	for _, l := range listings.All() {
		if l.String() == name {
			return l, nil
		}
	}
	return listings.Listing{}, fmt.Errorf("cannot find the listing %q", name)
}

// adopt takes a listing's words over into the edition: its version and branch are replaced.
func (e edition) adopt(l listings.Listing, words string) string {
	if l.Version == e.version && e.named == "" {
		return words
	}

	if strings.Contains(words, "(= ") { // whole versions first: the revision may be another
		for _, p := range l.Packages {
			if p.Upstream() == l.Version && p.Version != l.Version {
				words = strings.ReplaceAll(words, "(= "+p.Version+")", "(= "+e.whole(p.Name)+")")
			}
		}
	}

	words = strings.ReplaceAll(words, l.Version, e.version)
	return threeDigits.ReplaceAllStringFunc(words, func(number string) string {
		if number == branch(l.Version) {
			return e.branch()
		}
		return number
	})
}

// rows returns the packages of an edition.
func (e edition) rows() ([]row, error) {
	var rows []row
	known := map[string]bool{}
	for _, name := range e.names {
		listed, driverOnly := strings.CutPrefix(name, "~")
		l, err := find(listed)
		if err != nil {
			return nil, err
		}
		for _, p := range l.Packages {
			if driverOnly && companions.MatchString(p.Name) {
				continue
			}
			r, ok := e.row(l, p)
			if ok && !known[r.name] {
				known[r.name] = true
				rows = append(rows, r)
			}
		}
	}

	absent := e.absent()
	rows = slices.DeleteFunc(rows, func(r row) bool { return slices.Contains(absent, r.name) })
	for i := range rows {
		if err := e.relate(&rows[i]); err != nil {
			return nil, err
		}
	}

	return rows, nil
}

// row returns the edition's package for a package of a listing; false if the edition has none.
func (e edition) row(l listings.Listing, p listings.Package) (row, bool) {
	if others.MatchString(p.Name) {
		return row{}, false
	}
	if slices.Contains(ownVersions, p.Name) {
		return row{
			name:    p.Name,
			version: cmp.Or(p.Version, "1.0.0-1"),
			own:     true,
		}, true
	}

	r := row{name: e.adopt(l, p.Name), arch: noArch(p.Arch)}
	ofOtherDriver := p.Version != "" && p.Upstream() != l.Version && p.Version != l.Version
	if ofOtherDriver || e.lacks(r.name) {
		return row{}, false // a listing may have another driver beside its own
	}

	isExact := l.Distro+" "+l.Repository == e.of && l.Version == e.version
	isPrecompiled := strings.HasPrefix(p.Name, "kmod-nvidia-"+l.Version)
	hasRevision := strings.Contains(p.Version, "-") && l.Repository != "nvidia"
	hasEpoch := strings.Contains(p.Version, ":")
	switch {
	case isPrecompiled: // for one kernel, and of that version alone
		r.version = e.epoch + p.Version
		return r, isExact
	case isExact && (hasRevision || hasEpoch):
		r.version = p.Version
	default:
		r.version = e.whole(r.name)
	}

	return r, true
}

// lacks says whether a listing's name is not a package of this edition.
func (e edition) lacks(name string) bool {
	// Transitional from an older branch.
	m := anyBranch.FindStringSubmatch(name)
	if m != nil && m[1] != e.branch() {
		return true
	}
	// The desktop's flavour, of which no listing is whole.
	ofArchive := strings.HasSuffix(e.of, " ubuntu")
	if ofArchive && !strings.Contains(name, "-server") && !companions.MatchString(name) {
		return true
	}
	// The name of firmware has the version, so no package of another branch replaces it.
	return e.draws != "" && strings.Contains(name, "firmware")
}

func noArch(arch string) string {
	if arch == "all" || arch == "noarch" {
		return arch
	}
	return ""
}

// absent returns the names that some listing of the same branch, in the same repository of a like
// distribution, says do not exist.
func (e edition) absent() []string {
	names := slices.Clone(e.without)
	distro, repository, _ := strings.Cut(e.of, " ")
	for _, l := range listings.All() {
		sameRepository := family(l.Distro) == family(distro) && l.Repository == repository
		if !sameRepository || branch(l.Version) != e.branch() {
			continue
		}
		for _, name := range l.Absent {
			names = append(names, e.adopt(l, name))
		}
	}

	return names
}

// family is ubuntu, debian, rhel, amzn or azl.
func family(distro string) string { return strings.TrimRight(distro, "0123456789") }

// relate fills in what listings say of a package.
func (e edition) relate(r *row) error {
	if e.draws != "" && !r.own {
		itsBranch := regexp.MustCompile(`-` + e.branch() + `\b`)
		r.draws = itsBranch.ReplaceAllString(r.name, "-"+e.draws)
	}
	for _, name := range slices.Concat(e.names, e.relations) {
		l, err := find(strings.TrimPrefix(name, "~"))
		if err != nil {
			return err
		}
		take := func(into *string, from map[string]string) {
			for of, words := range from {
				if *into == "" && e.adopt(l, of) == r.name {
					*into = e.adopt(l, words)
				}
			}
		}

		take(&r.depends, l.Depends)
		take(&r.preDepends, l.PreDepends)
		take(&r.provides, l.Provides)
		if l.Distro+" "+l.Repository == e.of && branch(l.Version) == e.branch() {
			take(&r.component, l.Component)
			take(&r.draws, l.Transitional)
		}
	}

	return nil
}
