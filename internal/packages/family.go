// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Family is a set of packages that must all have the same upstream version: the parts of a
// driver. The spec asks for a few of them, and their dependencies add the others; gpuadm checks
// that the whole family has one upstream version.
type Family struct {
	// Group is the group of the members' open versions: "driver" of "driver=580.*".
	Group string
	// Names are globs. apt's pins use them too, so they are apt's: apt_preferences(5).
	Names []string
	// Branch matches names whose version is not the driver's; its first group is the branch. nil:
	// there are none.
	Branch func() *regexp.Regexp
	// OwnVersion has packages with names like the family's that have versions of their own.
	OwnVersion []string
	// Extras are asked for where the source has them in the family's version; a node works without
	// them.
	Extras []string
	// Rivals are globs of parts that cannot be beside those asked for, though the packager allows
	// it: kernel modules of another kind. A part that the spec asks for is no rival.
	Rivals []string
	// Exclude is apt's pin for the source that must not mix with this one: "release o=Ubuntu"; ""
	// for none.
	Exclude string
	// Excluded are globs of the names that Exclude keeps out. A regular expression cost each apt
	// command 15 s of CPU, a glob costs 0.04 s.
	Excluded []string
}

// A choice is the one version of a family, and the source that has it.
type choice struct {
	own  string // 580.95.05; "" where none is chosen
	site string // "" if its packages come from several
}

// has reports whether an offer comes from the chosen source.
func (c choice) has(o Offer) bool {
	if c.site == "" {
		return true
	}
	return slices.ContainsFunc(o.From, func(source string) bool {
		return siteOf(source) == c.site
	})
}

// Has reports whether a package in this version is part of the family.
func (f *Family) Has(name, version string) bool {
	if f == nil || !numbered(Own(version)) {
		return false
	}

	bare := bareName(name)
	if slices.Contains(f.OwnVersion, bare) {
		return false
	}
	return slices.ContainsFunc(f.Names, func(glob string) bool {
		ok, err := path.Match(glob, bare)
		return ok && err == nil
	})
}

// numbered reports whether an upstream version looks like a driver's: 535.309.01, 580.95,
// 615.71.09. Other packages with a driver's name have their own versions: nvidia-container-toolkit
// 1.18.0, nvidia-fs 2.27.3, nvidia-support 20240109.
//
// It uses no regular expression, which each run would compile even on a converged machine.
func numbered(own string) bool {
	if strings.IndexByte(own, '.') != 3 || own[0] < '3' {
		return false
	}
	for part := range strings.SplitSeq(own, ".") {
		if part == "" || strings.Trim(part, "0123456789") != "" {
			return false
		}
	}

	return true
}

// bareName is a package's name without the architecture that a foreign one carries: "name:i386",
// "name.i686".
func bareName(name string) string {
	name, _, _ = strings.Cut(name, ":")
	return strings.TrimSuffix(name, ".i686")
}

// branchOf returns the branch in a package's name, such as 595 in
// linux-modules-nvidia-595-open-generic, whose version is the kernel's; "" if the name has none.
func (f *Family) branchOf(name string) string {
	if f == nil || f.Branch == nil {
		return ""
	}
	if m := f.Branch().FindStringSubmatch(bareName(name)); m != nil {
		return m[1]
	}
	return ""
}

// Pins keep the family at a version, which may be open, and exclude another source's. The first pin
// that fits a package counts.
func (f *Family) Pins(version string) (pins []Pin) {
	if f.Exclude != "" {
		pins = append(pins, Pin{
			Names:    f.Excluded,
			Pin:      f.Exclude,
			Priority: -1,
		})
	}
	return append(pins, KeepAt(version, f.Names...))
}

// extra reports whether a package is one of Extras.
func (f *Family) extra(name string) bool {
	return f != nil && slices.Contains(f.Extras, name)
}

// isRival reports whether a part that the spec does not ask for cannot be beside those that it asks
// for.
func (f *Family) isRival(name string) bool {
	return slices.ContainsFunc(f.Rivals, func(glob string) bool {
		ok, err := path.Match(glob, bareName(name))
		return ok && err == nil
	})
}

// names returns the packages whose offers a request needs.
func (r Request) names(installed map[string]State) (names []string) {
	for _, c := range r.Changes {
		names = append(names, c.Name)
	}
	if r.Family == nil {
		return names
	}

	for name, found := range installed {
		if found.Installed() && r.Family.Has(name, found.Version) {
			names = append(names, name)
		}
	}

	return append(names, r.Family.Extras...)
}

// stateFor returns the state that an installed package of the family needs for a choice: the
// version that the chosen source has, or removed. kept is true if the package can stay.
//
// A dependency whose version is in no source has come from another source than the chosen one, if
// that one does not even have its name: NVIDIA's libnvidia-cfg1 beside Ubuntu's
// libnvidia-cfg1-595-server, which has the same files and does not replace it.
func (f *Family) stateFor(found State, chosen choice, offers []Offer) (to State, kept bool) {
	if Own(found.Version) == chosen.own && !chosen.lacks(found, offers) {
		return found, true
	}

	fits := func(o Offer) bool {
		return Own(o.Version) == chosen.own && chosen.has(o) && o.Priority >= 0
	}
	i := slices.IndexFunc(offers, fits)
	if i < 0 {
		return State{Version: removed}, false
	}
	return State{
		Version: offers[i].Version,
		Held:    true,
		Auto:    found.Auto,
	}, false
}

// lacks reports whether an installed version has come from another source than the chosen one.
func (c choice) lacks(found State, offers []Offer) bool {
	offer, isOffered := Find(offers, found.Version)
	if isOffered {
		return !c.has(offer)
	}
	hasName := slices.ContainsFunc(offers, c.has)
	return found.Auto && c.site != "" && !hasName
}

// versionFor returns the version for a package that the spec asks for in any version. If the source
// has the package in the family's version, it is part of the family and needs that version; else
// the result is "".
func (f *Family) versionFor(name string, chosen choice, offers []Offer) string {
	if f == nil || chosen.own == "" {
		return ""
	}
	for _, o := range offers {
		if f.Has(name, o.Version) && Own(o.Version) == chosen.own && chosen.has(o) {
			return o.Version
		}
	}

	return ""
}

// mayStay reports whether an installed part that a change would touch could stay instead: the
// chosen source has it, and the change removes a part that the spec no longer asks for, or moves a
// dependency to another version.
func (f *Family) mayStay(c converge.Change, chosen choice, offers []Offer) bool {
	before, after := Parse(c.Before), Parse(c.After)
	if chosen.own == "" || !before.Installed() || !f.Has(c.Name, before.Version) {
		return false
	}
	dependency := c.Dependency && before.Auto
	if after.Installed() && !dependency {
		return false
	}

	to, _ := f.stateFor(before, chosen, offers)
	return to.Installed()
}

// addParts returns the changes with those that the family also needs: extras that the source has,
// packages that do not fit the chosen version, and holds on those that do. offers are of all these
// names.
func (f *Family) addParts(
	changes []converge.Change,
	all map[string]State,
	offers map[string][]Offer,
	chosen choice,
) []converge.Change {
	if f == nil {
		return changes
	}
	if chosen.own == "" {
		chosen.own = f.versionIn(changes) // the other parts get the marks of the parts asked for
	}
	if chosen.own == "" {
		return changes
	}

	f.upgradeParts(changes, offers, chosen)
	changes = append(changes, f.installedParts(Named(changes), all, offers, chosen)...)
	if chosen.site == "" {
		chosen.site = f.siteOf(chosen.own, all, offers)
	}
	return append(changes, f.extras(Named(changes), all, offers, chosen)...)
}

// upgradeParts gives the chosen version to changes that would restore parts of an earlier driver: a
// part that the spec no longer asks for is restored as gpuadm found it.
func (f *Family) upgradeParts(changes []converge.Change, offers map[string][]Offer, chosen choice) {
	for i, c := range changes {
		before := Parse(c.Before)
		after := Parse(c.After)
		if !after.Installed() || !f.Has(c.Name, after.Version) || Own(after.Version) == chosen.own {
			continue
		}
		to, _ := f.stateFor(before, chosen, offers[c.Name])
		changes[i].After = to.String()
	}
}

// installedParts returns the changes to installed parts that have no change yet.
func (f *Family) installedParts(
	asked map[string]bool, all map[string]State, offers map[string][]Offer, chosen choice,
) (changes []converge.Change) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found := all[name]
		if asked[name] || !found.Installed() || !f.Has(name, found.Version) {
			continue
		}
		c := f.partChange(name, found, chosen, offers[name])
		if c.After != c.Before {
			changes = append(changes, c)
		}
	}
	return changes
}

// extras returns the changes that install extras which the source has.
func (f *Family) extras(
	asked map[string]bool, all map[string]State, offers map[string][]Offer, chosen choice,
) (changes []converge.Change) {
	for _, name := range f.Extras {
		found := all[name]
		if asked[name] || found.Installed() || found.Version == Nowhere {
			continue
		}
		to, _ := f.stateFor(State{Auto: true}, chosen, offers[name])
		if to.Installed() {
			changes = append(changes, dependencyChange(name, found, to, "part of the driver"))
		}
	}
	return changes
}

// siteOf returns the source that has all installed parts of the family in their own version; "" if
// none has all.
func (f *Family) siteOf(own string, all map[string]State, offers map[string][]Offer) string {
	var parts []string
	for name, found := range all {
		if found.Installed() && f.Has(name, found.Version) && Own(found.Version) == own {
			parts = append(parts, name)
		}
	}

	sites, _ := bySite(parts, own, offers)
	site, _ := bestSite(sites, len(parts))
	return site
}

// versionIn returns the own version of the first part of the family that changes install.
func (f *Family) versionIn(changes []converge.Change) string {
	for _, c := range changes {
		after := Parse(c.After)
		if after.Installed() && f.Has(c.Name, after.Version) {
			return Own(after.Version)
		}
	}
	return ""
}

// partChange returns what an installed part needs for a choice if the spec does not ask for the
// part.
func (f *Family) partChange(name string, found State, chosen choice, offers []Offer) converge.Change {
	if f.isRival(name) {
		const why = "its kernel modules cannot be beside those asked for"
		return dependencyChange(name, found, State{Version: removed}, why)
	}

	to, kept := f.stateFor(found, chosen, offers)
	why := ""
	switch {
	case kept && to.Broken != "":
		to.Held = true
		to.Broken = ""
		why = "part of the driver: it is " + found.Broken + ", and is installed again in its version"
	case kept:
		to.Held = true
		why = "part of the driver: held in its version"
	case to.Installed():
		why = "part of the driver: all parts need the same version"
	default:
		why = "does not work beside driver " + chosen.own
	}

	return dependencyChange(name, found, to, why)
}

// addRevisions adds changes for installed parts whose revision of the chosen version the source no
// longer has: they get the source's revision, on which the other parts depend. more reports whether
// there was any.
func (f *Family) addRevisions(
	changes []converge.Change,
	all map[string]State,
	offers map[string][]Offer,
	chosen choice,
) (_ []converge.Change, more bool) {
	if f == nil || chosen.own == "" {
		return changes, false
	}

	for _, name := range slices.Sorted(maps.Keys(all)) {
		found := all[name]
		if !found.Installed() || !f.Has(name, found.Version) || Own(found.Version) != chosen.own {
			continue
		}
		to := found
		i := indexOf(changes, name)
		if i >= 0 {
			to = Parse(changes[i].After)
		}
		version := f.versionFor(name, chosen, offers[name])
		_, offered := Find(offers[name], to.Version)
		if offered || version == "" || !to.Installed() {
			continue
		}

		to.Version = version
		to.Held = true
		more = true
		if i < 0 {
			const why = "part of the driver: the source has this revision"
			changes = append(changes, dependencyChange(name, found, to, why))
			continue
		}

		changes[i].After = to.String()
	}

	return changes, more
}

// refuseMixed refuses a transaction that would install parts of another version or branch, whatever
// the packager's reason.
func (f *Family) refuseMixed(changes []converge.Change, chosen choice) error {
	if f == nil || chosen.own == "" {
		return nil
	}

	branch, _, _ := strings.Cut(chosen.own, ".")
	var wrong []string
	versions := map[string]bool{}
	for _, c := range changes {
		after := Parse(c.After)
		if !after.Installed() {
			continue
		}
		other := ""
		own := Own(after.Version)
		named := f.branchOf(c.Name)
		switch {
		case f.Has(c.Name, after.Version) && own != chosen.own:
			other = own
		case named != "" && named != branch:
			other = named
		default:
			continue
		}

		wrong = append(wrong, c.Name+" "+after.Version)
		versions[other] = true
	}

	if len(wrong) == 0 {
		return nil
	}

	others := slices.Sorted(maps.Keys(versions))
	newest := others[len(others)-1]
	const dependsOn = "cannot install %s %s: its packages depend on packages of %s"
	return &trouble.Error{
		What: fmt.Sprintf(dependsOn, f.Group, chosen.own, strings.Join(others, " and ")),
		Because: []string{
			"the packager would also install " + strings.Join(wrong, ", "),
			"a driver's parts work in one version only; a repository may have packages of one branch that only lead to the next",
		},
		Try: []string{fmt.Sprintf("write version = %q in [driver], if the GPUs and the workload allow it, or another version or source", newest)},
	}
}

// holdAll gives all parts of the family the hold of the parts asked for: an upgrade of one part
// would mix versions.
func (f *Family) holdAll(changes []converge.Change) {
	for i, c := range changes {
		after := Parse(c.After)
		if after.Installed() && f.Has(c.Name, after.Version) {
			after.Held = true
			changes[i].After = after.String()
		}
	}
}

// familyFirst orders the groups of open versions: the family's version is chosen before those of
// packages that may be part of it.
func familyFirst(groups map[string][]int, f *Family) []string {
	rank := func(open string) int {
		group, _, _ := strings.Cut(open, "=")
		if f != nil && group == f.Group {
			return 0
		}
		return 1
	}
	sorted := slices.Collect(maps.Keys(groups))
	sorting.By(sorted, func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
	})
	return sorted
}
