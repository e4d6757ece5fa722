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
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Family is a set of packages that must all have the same upstream version: the parts of a
// driver. The spec asks for a few of them, and their dependencies add the others; gpuadm checks
// that the whole family has one upstream version.
type Family struct {
	Group    string                // of the members' open versions: "driver" of "driver=580.*"
	Names    []string              // globs; apt's pins use them too, so they are apt's: apt_preferences(5)
	Branch   func() *regexp.Regexp // the branch, as its first group, in names whose version is not the driver's; nil: none have one
	Apart    []string              // packages with names like the family's that have versions of their own
	Extras   []string              // asked for where the source has them in the family's version; a node works without them
	Exclude  string                // apt's pin for the source that must not mix with this one: "release o=Ubuntu"; "" for none
	Excluded []string              // globs of the names that Exclude keeps out; a regular expression cost each apt command 15 s of CPU, a glob costs 0.04 s
}

// numbered says whether an upstream version looks like a driver's: 535.309.01, 580.95, 615.71.09.
// Other packages with a driver's name have their own versions: nvidia-container-toolkit 1.18.0,
// nvidia-fs 2.27.3, nvidia-support 20240109.
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

// Has says whether a package in this version is part of the family.
func (f *Family) Has(name, version string) bool {
	if f == nil || !numbered(Own(version)) {
		return false
	}
	bare := bareName(name)
	return !slices.Contains(f.Apart, bare) && slices.ContainsFunc(f.Names, func(glob string) bool {
		ok, err := path.Match(glob, bare)
		return ok && err == nil
	})
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
		pins = append(pins, Pin{Names: f.Excluded, Pin: f.Exclude, Priority: -1})
	}
	return append(pins, KeepAt(version, f.Names...))
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

// A choice is the one version of a family, and the source that has it.
type choice struct {
	own  string // 580.95.05
	site string // "" if its packages come from several
}

// fit returns the state that an installed package of the family needs for a choice: the version
// that the chosen source has, or removed. kept is true if the package can stay.
func (f *Family) fit(found State, chosen choice, offers []Offer) (to State, kept bool) {
	if Own(found.Version) == chosen.own {
		now, known := Find(offers, found.Version)
		if !known || chosen.has(now) {
			return found, true
		}
	}
	for _, o := range offers {
		if Own(o.Version) == chosen.own && chosen.has(o) {
			return State{Version: o.Version, Held: true, Auto: found.Auto}, false
		}
	}
	return State{Version: removed}, false
}

// has says whether its source has an offer.
func (c choice) has(o Offer) bool {
	return c.site == "" || slices.ContainsFunc(o.From, func(source string) bool { site, _, _ := strings.Cut(source, " "); return site == c.site })
}

// with returns the changes that the family needs beside those asked for: extras that the source
// has, packages that do not fit the chosen version, and holds on those that do. offers are of all
// these names.
func (f *Family) with(changes []converge.Change, all map[string]State, offers map[string][]Offer, chosen choice) []converge.Change {
	for _, c := range changes { // the other parts get the marks of the parts asked for
		if after := Parse(c.After); chosen.own == "" && after.Installed() && f.Has(c.Name, after.Version) {
			chosen.own = Own(after.Version)
		}
	}
	if f == nil || chosen.own == "" {
		return changes
	}
	for i, c := range changes {
		before, after := Parse(c.Before), Parse(c.After)
		// A part that the spec no longer asks for is restored as gpuadm found it; parts of an
		// earlier driver are upgraded.
		if after.Installed() && f.Has(c.Name, after.Version) && Own(after.Version) != chosen.own {
			to, _ := f.fit(before, chosen, offers[c.Name])
			changes[i].After = to.String()
		}
	}
	add := func(name string, to State, why string) {
		if before := all[name].String(); before != to.String() {
			changes = append(changes, converge.Change{Ref: converge.Ref{Kind: "package", Name: name}, Before: before, After: to.String(), Why: why, Dependency: true})
		}
	}
	named := Named(changes)
	for _, name := range slices.Sorted(maps.Keys(all)) { // installed parts that the changes do not name
		if named[name] || !all[name].Installed() || !f.Has(name, all[name].Version) {
			continue
		}
		to, kept := f.fit(all[name], chosen, offers[name])
		switch {
		case kept && to.Broken != "":
			to.Held, to.Broken = true, ""
			add(name, to, "part of the driver: it is "+all[name].Broken+", and is installed again in its version")
		case kept:
			to.Held = true
			add(name, to, "part of the driver: held in its version")
		case to.Installed():
			add(name, to, "part of the driver: all parts need the same version")
		default:
			add(name, to, fmt.Sprintf("does not work beside driver %s", chosen.own))
		}
	}
	for _, name := range f.Extras {
		if all[name].Installed() || all[name].Version == Nowhere || slices.ContainsFunc(changes, func(c converge.Change) bool { return c.Name == name }) {
			continue
		}
		if to, _ := f.fit(State{Auto: true}, chosen, offers[name]); to.Installed() {
			add(name, to, "part of the driver")
		}
	}
	return changes
}

// extra says whether a package is one of Extras.
func (f *Family) extra(name string) bool { return f != nil && slices.Contains(f.Extras, name) }

// mayStay says whether an installed part that a change would touch could stay instead: the chosen
// source has it, and the change removes a part that the spec no longer asks for, or moves a
// dependency to another version.
func (f *Family) mayStay(c converge.Change, chosen choice, offers []Offer) bool {
	before, after := Parse(c.Before), Parse(c.After)
	if f == nil || chosen.own == "" || !before.Installed() || !f.Has(c.Name, before.Version) || after.Installed() && !(c.Dependency && before.Auto) {
		return false
	}
	to, _ := f.fit(before, chosen, offers)
	return to.Installed()
}

// revised adds changes for installed parts whose revision of the chosen version the source no
// longer has: they get the source's revision, on which the other parts depend. more says whether
// there was any.
func (f *Family) revised(changes []converge.Change, all map[string]State, offers map[string][]Offer, chosen choice) (with []converge.Change, more bool) {
	if f == nil || chosen.own == "" {
		return changes, false
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found := all[name]
		if !found.Installed() || !f.Has(name, found.Version) || Own(found.Version) != chosen.own {
			continue
		}
		to, i := found, slices.IndexFunc(changes, func(c converge.Change) bool { return c.Name == name })
		if i >= 0 {
			to = Parse(changes[i].After)
		}
		fits := f.fitting(name, chosen, offers[name])
		if _, known := Find(offers[name], to.Version); known || fits == "" || !to.Installed() {
			continue
		}
		if to.Version, to.Held, more = fits, true, true; i < 0 {
			i, changes = len(changes), append(changes, converge.Change{Ref: converge.Ref{Kind: "package", Name: name}, Before: found.String(), Why: "part of the driver: the source has this revision", Dependency: true})
		}
		changes[i].After = to.String()
	}
	return changes, more
}

// mixed refuses a transaction that would install parts of another version or branch, whatever the
// packager's reason.
func (f *Family) mixed(changes []converge.Change, chosen choice) error {
	if f == nil || chosen.own == "" {
		return nil
	}
	branch, _, _ := strings.Cut(chosen.own, ".")
	var wrong []string
	others := map[string]bool{}
	for _, c := range changes {
		after := Parse(c.After)
		if !after.Installed() {
			continue
		}
		if own := Own(after.Version); f.Has(c.Name, after.Version) && own != chosen.own {
			wrong, others[own] = append(wrong, c.Name+" "+after.Version), true
		} else if of := f.branchOf(c.Name); of != "" && of != branch {
			wrong, others[of] = append(wrong, c.Name+" "+after.Version), true
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	other := slices.Sorted(maps.Keys(others))
	return &trouble.Error{
		What: fmt.Sprintf("cannot install %s %s: its packages depend on packages of %s", f.Group, chosen.own, strings.Join(other, " and ")),
		Because: []string{
			"the packager would also install " + strings.Join(wrong, ", "),
			"a driver's parts work in one version only; a repository may have packages of one branch that only lead to the next",
		},
		Try: []string{fmt.Sprintf("write version = %q in [driver], if the GPUs and the workload allow it, or another version or source", other[len(other)-1])},
	}
}

// fitting returns the version for a package that the spec asks for in any version. If the source
// has the package in the family's version, it is part of the family and needs that version; else
// the result is "".
func (f *Family) fitting(name string, chosen choice, offers []Offer) string {
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

// hold gives all parts of the family the hold of the parts asked for: an upgrade of one part would
// mix versions.
func (f *Family) hold(changes []converge.Change) {
	for i, c := range changes {
		if after := Parse(c.After); after.Installed() && f.Has(c.Name, after.Version) {
			after.Held = true
			changes[i].After = after.String()
		}
	}
}

// familyFirst orders the groups of open versions: the family's version is chosen before those of
// packages that may be part of it.
func familyFirst(groups map[string][]int, f *Family) []string {
	return slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		of := func(open string) int {
			if group, _, _ := strings.Cut(open, "="); f != nil && group == f.Group {
				return 0
			}
			return 1
		}
		return cmp.Or(of(a)-of(b), strings.Compare(a, b))
	})
}

// missed notes a package that keeps its group at an older version than the others have: on Debian
// 12 the open modules of 535 have 535.261.03, while its security pocket has all other parts in
// 535.309.01 (test/listings).
func missed(name, version string, members []string, pattern string, offers map[string][]Offer, compare order) string {
	all := owns(members, pattern, offers, compare)
	if len(all) == 0 || all[0] == Own(version) || slices.ContainsFunc(offers[name], func(o Offer) bool { return Own(o.Version) == all[0] }) {
		return ""
	}
	return fmt.Sprintf("; the other packages are available in %s, and this one is not: %s is taken, without the fixes since", all[0], Own(version))
}
