// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// An Offer is a version of a package that apt or dnf can install.
type Offer struct {
	Version  string
	Priority int      // the highest wins, a negative one excludes: apt_preferences(5); for dnf see raised
	From     []string // sources: "http://debian.example/debian bookworm/main amd64"
}

// Find returns the offer of a version.
func Find(offers []Offer, version string) (Offer, bool) {
	i := slices.IndexFunc(offers, func(o Offer) bool { return o.Version == version })
	if i < 0 {
		return Offer{}, false
	}
	return offers[i], true
}

// hasOwn reports whether an offer has an own version, whatever its priority.
func hasOwn(offers []Offer, own string) bool {
	return slices.ContainsFunc(offers, func(o Offer) bool { return Own(o.Version) == own })
}

// siteOf returns the site of a source: http://debian.example/debian.
func siteOf(source string) string {
	site, _, _ := strings.Cut(source, " ")
	return site
}

// An order compares versions as one packager does.
type order = func(a, b string) int

// Newest orders offers by priority, then by version.
func Newest(offers []Offer, compare order) []Offer {
	sorting.By(offers, func(a, b Offer) int {
		return cmp.Or(b.Priority-a.Priority, compare(b.Version, a.Version))
	})
	return offers
}

// A siteOffer is what one site has of a group in one own version.
type siteOffer struct {
	versions map[string]string // by member
	priority int
}

func (s *siteOffer) add(member string, o Offer) {
	if s.versions[member] == "" {
		s.versions[member] = o.Version
		s.priority = max(s.priority, o.Priority)
	}
}

// choose picks a version for each member of a group: the first matching own version that every
// member has an offer of, from one source if one source has all of them, since two suppliers'
// packages of one version do not fit together. site is that source; "" if the packages come from
// several.
func choose(
	members []string,
	pattern string,
	offers map[string][]Offer,
	compare order,
) (versions map[string]string, site string, ok bool) {
	for _, own := range owns(members, pattern, offers, compare) {
		sites, all := bySite(members, own, offers)
		if site, found := bestSite(sites, len(members)); found {
			return sites[site].versions, site, true
		}
		if len(all.versions) == len(members) {
			return all.versions, "", true
		}
	}
	return nil, "", false
}

// bySite returns what each site has of a group in one own version, and what all sites have
// together.
func bySite(
	members []string,
	own string,
	offers map[string][]Offer,
) (sites map[string]*siteOffer, all *siteOffer) {
	sites = map[string]*siteOffer{}
	all = &siteOffer{versions: map[string]string{}}
	for _, member := range members {
		for _, o := range offers[member] {
			if Own(o.Version) != own || o.Priority < 0 {
				continue
			}
			all.add(member, o)
			for _, source := range o.From {
				site := siteOf(source)
				if sites[site] == nil {
					sites[site] = &siteOffer{versions: map[string]string{}}
				}
				sites[site].add(member, o)
			}
		}
	}

	return sites, all
}

// bestSite returns the site with the highest priority among those that have all members. With dnf a
// site is a repository's id: gpuadm's repositories come before those that others have set up.
func bestSite(sites map[string]*siteOffer, members int) (best string, found bool) {
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		site := sites[name]
		if len(site.versions) < members {
			continue
		}
		lead := 1 // over the best so far
		if found {
			lead = site.priority - sites[best].priority
		}
		if lead > 0 || lead == 0 && strings.HasPrefix(name, OurFiles) {
			best = name
			found = true
		}
	}
	return best, found
}

// owns returns the matching own versions in the packager's order of preference: by the priority
// that every member has, then the newest first. So an open version follows apt_preferences(5) and
// the priorities of dnf.conf(5).
func owns(members []string, pattern string, offers map[string][]Offer, compare order) []string {
	rank := map[string]int{}
	for _, member := range members {
		best := map[string]int{}
		for _, o := range offers[member] {
			if Matches(pattern, o.Version) && o.Priority >= 0 {
				own := Own(o.Version)
				best[own] = max(best[own], o.Priority)
			}
		}

		for own, priority := range best {
			if others, known := rank[own]; known {
				priority = min(priority, others)
			}
			rank[own] = priority
		}
	}

	versions := slices.Collect(maps.Keys(rank))
	sorting.By(versions, func(a, b string) int {
		return cmp.Or(rank[b]-rank[a], compare(b, a))
	})
	return versions
}

// common returns the own versions that every member has an offer of, newest first.
func common(members []string, offers map[string][]Offer, compare order) (shared []string) {
	for _, own := range owns(members, "*", offers, compare) {
		lacksIt := func(member string) bool { return !hasOwn(offers[member], own) }
		if !slices.ContainsFunc(members, lacksIt) {
			shared = append(shared, own)
		}
	}
	return shared
}

// olderMember notes a package that keeps its group at an older version than the others have: on
// Debian 12 the open modules of 535 have 535.261.03, while its security pocket has all other parts
// in 535.309.01 (test/listings).
func olderMember(
	name, version string,
	members []string,
	pattern string,
	offers map[string][]Offer,
	compare order,
) string {
	all := owns(members, pattern, offers, compare)
	own := Own(version)
	if len(all) == 0 || all[0] == own || hasOwn(offers[name], all[0]) {
		return ""
	}
	return fmt.Sprintf("; the other packages are available in %s, and this one is not: %s is taken, without the fixes since", all[0], own)
}

// availableAll lists the available versions of packages with their sources; packages with the same
// answer share a line.
func availableAll(names []string, source string, of func(name string) ([]Offer, State)) (lines []string) {
	var answers []string
	namesOf := map[string][]string{} // by answer
	for _, name := range names {
		offers, found := of(name)
		answer := available(offers, source, found)
		if namesOf[answer] == nil {
			answers = append(answers, answer)
		}
		namesOf[answer] = append(namesOf[answer], name)
	}

	for _, answer := range answers {
		lines = append(lines, strings.Join(namesOf[answer], ", ")+": "+answer)
	}
	return lines
}

func available(offers []Offer, source string, found State) string {
	const most = 6
	var places []string
	at := map[string][]string{} // versions by place, newest first
	for _, o := range offers[:min(most, len(offers))] {
		place := strings.Join(o.From, " and ")
		if at[place] == nil {
			places = append(places, place)
		}
		version := o.Version
		if o.Priority < 0 {
			version += fmt.Sprintf(" (kept out by its priority, %d)", o.Priority)
		}
		at[place] = append(at[place], version)
	}

	var listed []string
	for _, place := range places {
		versions := strings.Join(at[place], ", ")
		if place != "" {
			versions += " from " + place
		}
		listed = append(listed, versions)
	}

	text := cmp.Or(strings.Join(listed, "; "), "no "+source+" has it")
	if len(offers) > most {
		text += fmt.Sprintf(", and %d more", len(offers)-most)
	}
	if found.Installed() {
		text += "; installed is " + found.Version
	}
	return text
}

// WithoutHeaders advises on a kernel whose headers are not available. It never advises to remove
// the running kernel.
// Source: proc(5), /proc/sys/kernel/osrelease.
func WithoutHeaders(v host.View, kernel string) string {
	running, _ := v.ReadFile("/proc/sys/kernel/osrelease")
	own := "of a kernel of your own: have /lib/modules/" + kernel + "/build lead to its build tree, and gpuadm builds with that"
	if v.Live() && strings.TrimSpace(string(running)) == kernel {
		headers := "install the headers of " + kernel + ", which runs now, from another source"
		return "install a kernel whose headers are available and reboot into it, or " + headers + "; " + own
	}
	return "take a kernel whose headers are available; remove kernel " + kernel + " if it is not meant to run; " + own
}
