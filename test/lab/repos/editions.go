// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/listings"
)

// edition is one driver version in one repository. Its packages are those of listings; a listing of another version gives
// its names, with the version and the branch replaced.
type edition struct {
	of       string // distribution and repository, as in listings: "ubuntu2404 nvidia"
	version  string // 580.95.05
	epoch    string // "3:"
	revision string // of the driver's packages, "-0ubuntu1"
	// companion is the revision of what must have the driver's version and is built elsewhere: fabric manager, NSCQ, …
	companion string
	// names are the listings that say which packages there are, "ubuntu2404 nvidia 580.159.03"; of one that begins with ~
	// only the driver's own packages are taken.
	names []string
	// relations are more listings that say what packages depend on and provide.
	relations []string
	without   []string
	component string
	// named is the branch in the names where it is not the version's: a transitional package can have the version of another.
	named string
	// draws makes every package a transitional one, to that of another branch.
	draws string
	// bad says that the module's package cannot be configured: BadDriver.
	bad bool
}

// row is a package of an edition before it has files.
type row struct {
	name, version, arch                  string
	depends, preDepends, provides, draws string
	component                            string
	own                                  bool // its version is not the driver's
}

var (
	companions = regexp.MustCompile(`^(cuda-drivers-fabric|nvidia-fabric|libnvidia-nscq|libnvsdm|nvidia-imex|imex|nvlink5)`)
	// others have versions of their own, or lie in another repository of the lab.
	others      = regexp.MustCompile(`container|^cuda-compat|^mft|^collectx|^nvidia-fs|^(dh-)?dkms$|^linux-modules-|\*|^cuda$|^infiniband|^glx-|^nvidia-tesla|^cuda-open`)
	ownVersions = []string{"nvlsm", "nvidia-driver-selinux", "dnf-plugin-nvidia", "egl-wayland2"}
	threeDigits = regexp.MustCompile(`\b\d{3}\b`)
	anyBranch   = regexp.MustCompile(`-(\d{3})(-|$)`)
)

func (e edition) branch() string {
	if e.named != "" {
		return e.named
	}
	return branch(e.version)
}

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

// rows are the packages of an edition.
func (e edition) rows() ([]row, error) {
	var rows []row
	there := map[string]int{}
	for _, name := range e.names {
		l, err := find(strings.TrimPrefix(name, "~"))
		if err != nil {
			return nil, err
		}
		exact := l.Distro+" "+l.Repository == e.of && l.Version == e.version
		for _, p := range l.Packages {
			r, ok := e.row(l, p, exact, strings.HasPrefix(name, "~"))
			if _, is := there[r.name]; ok && !is {
				there[r.name] = len(rows)
				rows = append(rows, r)
			}
		}
	}
	absentPackages, err := e.absent()
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return slices.Contains(absentPackages, r.name) })
	for i := range rows {
		if err := e.relate(&rows[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (e edition) row(l listings.Listing, p listings.Package, exact, driverOnly bool) (row, bool) {
	if others.MatchString(p.Name) || driverOnly && companions.MatchString(p.Name) {
		return row{}, false
	}
	if slices.Contains(ownVersions, p.Name) {
		r := row{name: p.Name, version: p.Version, own: true}
		if r.version == "" {
			r.version = "1.0.0-1"
		}
		return r, true
	}
	r := row{name: e.adopt(l, p.Name), arch: noArch(p.Arch)}
	if p.Version != "" && p.Upstream() != l.Version && p.Version != l.Version {
		return row{}, false // of another driver, which the listing has beside its own
	}
	if m := anyBranch.FindStringSubmatch(r.name); m != nil && m[1] != e.branch() {
		return row{}, false // transitional from an older branch
	}
	if strings.HasSuffix(e.of, " ubuntu") && !strings.Contains(r.name, "-server") && !companions.MatchString(r.name) {
		return row{}, false // the desktop's flavour, of which no listing is whole
	}
	if e.draws != "" && strings.Contains(r.name, "firmware") {
		return row{}, false // its name has the version
	}
	r.version = e.whole(r.name)
	if strings.HasPrefix(p.Name, "kmod-nvidia-"+l.Version) { // precompiled for one kernel, and of that version alone
		r.version = e.epoch + p.Version
		return r, exact
	}
	if exact && strings.Contains(p.Version, "-") && l.Repository != "nvidia" || exact && strings.Contains(p.Version, ":") {
		r.version = p.Version
	}
	return r, true
}

func noArch(arch string) string {
	if arch == "all" || arch == "noarch" {
		return arch
	}
	return ""
}

// absent are the names that some listing of the same branch, in the same repository of a like distribution, says are not there.
func (e edition) absent() ([]string, error) {
	absentPackages := slices.Clone(e.without)
	distro, repository, _ := strings.Cut(e.of, " ")
	for _, l := range listings.All() {
		if family(l.Distro) == family(distro) && l.Repository == repository && branch(l.Version) == e.branch() {
			for _, name := range l.Absent {
				absentPackages = append(absentPackages, e.adopt(l, name))
			}
		}
	}
	return absentPackages, nil
}

// family is ubuntu, debian, rhel, amzn or azl.
func family(distro string) string { return strings.TrimRight(distro, "0123456789") }

// relate fills in what listings say of a package.
func (e edition) relate(r *row) error {
	if e.draws != "" && !r.own {
		r.draws = regexp.MustCompile(`-`+e.branch()+`\b`).ReplaceAllString(r.name, "-"+e.draws)
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
