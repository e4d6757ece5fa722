// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/test/listings"
)

// edition is one driver version in one repository. Its packages are those of listings; a listing of
// another version gives its names, with the version and the branch replaced.
type edition struct {
	of       string // distribution and repository, as in listings: "ubuntu2404 nvidia"
	version  string // 580.95.05
	epoch    string // "3:"
	revision string // of the driver's packages, "-0ubuntu1"
	// companion is the revision of what must have the driver's version and is built elsewhere:
	// fabric manager, NSCQ, …
	companion string
	// names are the listings that say which packages there are, "ubuntu2404 nvidia 580.159.03"; of
	// one that begins with ~ only the driver's own packages are taken.
	names []string
	// relations are more listings that say what packages depend on and provide.
	relations []string
	without   []string
	component string
	// named is the branch in the names where it is not the version's: a transitional package can
	// have the version of another.
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

// absent are the names that some listing of the same branch, in the same repository of a like
// distribution, says are not there.
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

// Kernel is the kernel that Ubuntu's archive has precompiled modules for.
const Kernel = "6.1.0-99-lab"

// ubuntuNVIDIA are the editions of NVIDIA's repository for one release of Ubuntu: the listings of
// 22.04 and 24.04 have the same names, and where one is of a part, another of the same branch gives
// the rest.
func ubuntuNVIDIA(distro string) []edition {
	const (
		whole550 = "ubuntu2204 nvidia 550.54.15" // the one list of a whole repository up to 580
		whole595 = "ubuntu2404 nvidia 595.45.04" // and the one from 590 on
		virtual  = "ubuntu2204 nvidia 575.57.08" // how nvidia-persistenced and libnvidia-cfg1 hang together from 575 on
		draws    = "ubuntu2404 nvidia 610.43.02" // what libnvidia-compute draws in from 590 on
	)
	of := distro + " nvidia"
	// Of 580.95.05 and 580.105.08 only companions are listed; they have the names and revisions of
	// 580.65.06 and 580.126.20.
	names580 := []string{
		"ubuntu2204 nvidia 580.65.06", "ubuntu2404 nvidia 580.159.03", "ubuntu2404 nvidia 580.159.04", "ubuntu2404 nvidia 580.126.20",
		"~" + whole550,
	}
	names570 := []string{"ubuntu2204 nvidia 570.133.20", "ubuntu2404 nvidia 570.133.20", "ubuntu2404 nvidia 570.124.06", "~" + whole550}
	list := []edition{
		{of: of, version: "535.183.01", revision: "-0ubuntu1", companion: "-1", names: []string{"ubuntu2204 nvidia 535.183.01", whole550}, without: []string{"imex"}},
		{of: of, version: "550.54.15", revision: "-0ubuntu1", companion: "-1", names: []string{whole550}},
		{of: of, version: "570.133.20", revision: "-0ubuntu1", companion: "-1", names: names570},
		{of: of, version: "570.148.08", revision: "-1ubuntu1", companion: "-1", names: append([]string{"ubuntu2204 nvidia 570.148.08"}, names570...)},
		{of: of, version: "575.57.08", revision: "-0ubuntu1", companion: "-1", names: []string{virtual, "ubuntu2404 nvidia 570.124.06", "~" + whole550}},
	}
	for _, v := range []string{"580.65.06", "580.95.05", "580.105.08"} {
		list = append(list, edition{of: of, version: v, revision: "-0ubuntu1", companion: "-1", names: names580, relations: []string{virtual}})
	}
	list = append(list,
		edition{of: of, version: "580.159.04", revision: "-1ubuntu1", companion: "-1ubuntu1", names: names580, relations: []string{virtual}},
		edition{of: of, version: "590.48.01", revision: "-0ubuntu1", companion: "-1", names: []string{"ubuntu2404 nvidia 590.48.01", whole595}, relations: []string{draws, virtual}},
	)
	latest := []edition{
		{version: "595.58.03", revision: "-1ubuntu1"},
		{version: "595.71.05", revision: "-1ubuntu1"},
		{version: "610.43.02", revision: "-1ubuntu1"},
		{version: "615.71.09", revision: "-1ubuntu1"},
		{version: "615.71.09", revision: "-2ubuntu1"},
	}
	if distro == "ubuntu2604" { // it begins with 595, and 615 is listed for 24.04 alone
		list, latest = nil, latest[:3]
	}
	for _, e := range latest {
		e.of, e.companion = of, e.revision
		e.names, e.relations = []string{whole595}, []string{draws, virtual}
		list = append(list, e)
	}
	return list
}

// ubuntuArchive are the editions of the server branches in Ubuntu's own archive.
func ubuntuArchive(distro string) []edition {
	of := distro + " ubuntu"
	release := map[string]string{"ubuntu2204": "22.04", "ubuntu2404": "24.04", "ubuntu2604": "26.04"}[distro]
	// The whole set is listed for 580.159.03 and 570.195.03; the open flavour's names for
	// 570.211.01, 550.144.03 and 595.71.05.
	names := []string{
		"ubuntu2404 ubuntu 580.159.03", "ubuntu2204 ubuntu 570.195.03", "ubuntu2404 ubuntu 570.211.01", "ubuntu2404 ubuntu 550.144.03",
		"ubuntu2404 ubuntu 595.71.05", "ubuntu2604 ubuntu 580.126.20", "ubuntu2404 ubuntu 470.256.02",
	}
	at := func(version, revision string) edition {
		revision = "-0ubuntu0." + release + "." + revision
		return edition{of: of, version: version, revision: revision, companion: revision, names: names, component: "restricted"}
	}
	switch distro {
	case "ubuntu2204":
		old := at("535.309.01", "2")
		old.draws = "580" // the source page says transitional; to 580 is reasoned from Ubuntu 26.04, where the target is known
		return []edition{old, at("570.195.03", "2"), at("580.159.03", "1")}
	case "ubuntu2404":
		old, absent, next := at("535.309.01", "2"), at("590.48.01", "5"), at("595.71.05", "1")
		old.draws, absent.draws = "580", "595"
		next.component, absent.component = "multiverse", "multiverse"
		return []edition{old, at("570.211.01", "1"), at("580.159.03", "1"), at("580.173.02", "1"), absent, next}
	default: // of 535, 570 and 590 only names are left there: transitional, with the version of what they draw in
		list := []edition{at("580.173.02", "1"), at("595.71.05", "1")}
		for named, of := range map[string]int{"535": 0, "570": 0, "590": 1} {
			absent := list[of]
			absent.named, absent.draws = named, branch(absent.version)
			list = append(list, absent)
		}
		return list
	}
}

// debianNVIDIA are the editions of NVIDIA's repository for Debian 12 and 13: each listing is of a
// whole installation, the first and last of open, the middle of proprietary modules. The versions
// are those that the lab's other tests use.
func debianNVIDIA() []edition {
	names := []string{
		"debian12 nvidia 570.158.01", "debian nvidia 580.105.08", "debian nvidia 595.58.03", "debian13 nvidia 595.45.04",
		// What must have the driver's version lies in Debian's as in Ubuntu's; listed for Debian is
		// nvidia-fabricmanager-550 alone.
	}
	older := append(slices.Clone(names), "debian12 nvidia 550.90.07", "ubuntu2404 nvidia 570.124.06")
	newer := append(slices.Clone(names), "ubuntu2404 nvidia 580.126.20")
	list := []edition{{version: "570.172.08", names: older}}
	for _, v := range []string{"580.65.06", "580.95.05", BadDriver, "590.48.01", "595.58.03"} {
		list = append(list, edition{version: v, names: newer, bad: v == BadDriver})
	}
	for i := range list {
		list[i].of, list[i].revision, list[i].companion = "debian12 nvidia", "-1", "-1"
	}
	return list
}
