// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// An Offer is a version of a package that apt can install.
type Offer struct {
	Version  string
	Priority int      // the highest wins, a negative one excludes: apt_preferences(5); for dnf see ranks
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

// choose picks a version for each member of a group: the first matching own version that every
// member has an offer of, from one source if one source has all of them, since two suppliers'
// packages of one version do not fit together. site is that source; "" if the packages come from
// several.
func choose(members []string, pattern string, offers map[string][]Offer, compare order) (versions map[string]string, site string, ok bool) {
	for _, own := range owns(members, pattern, offers, compare) {
		type tally struct {
			have     map[string]string
			priority int
		}
		from := map[string]*tally{}
		all := tally{have: map[string]string{}}
		for _, m := range members {
			for _, o := range offers[m] {
				if Own(o.Version) != own || o.Priority < 0 {
					continue
				}
				for _, source := range o.From {
					site, _, _ := strings.Cut(source, " ")
					if from[site] == nil {
						from[site] = &tally{have: map[string]string{}}
					}
					if from[site].have[m] == "" {
						from[site].have[m] = o.Version
						from[site].priority = max(from[site].priority, o.Priority)
					}
				}
				if all.have[m] == "" {
					all.have[m] = o.Version
				}
			}
		}
		var best *tally
		for _, name := range slices.Sorted(maps.Keys(from)) {
			t := from[name]
			ours := strings.HasPrefix(name, OurFiles) // dnf's ids: gpuadm's repositories come before those that others have set up
			if len(t.have) == len(members) && (best == nil || t.priority > best.priority || ours && t.priority == best.priority) {
				best, site = t, name
			}
		}
		switch {
		case best != nil:
			return best.have, site, true
		case len(all.have) == len(members):
			return all.have, "", true
		}
	}
	return nil, "", false
}

// An order compares versions as one packager does.
type order = func(a, b string) int

// Newest orders offers by priority, then by version.
func Newest(offers []Offer, compare order) []Offer {
	slices.SortStableFunc(offers, func(a, b Offer) int { return cmp.Or(b.Priority-a.Priority, compare(b.Version, a.Version)) })
	return offers
}

// owns returns the matching own versions in the packager's order of preference: by the priority
// that every member has, then the newest first. So an open version follows apt_preferences(5) and
// the priorities of dnf.conf(5).
func owns(members []string, pattern string, offers map[string][]Offer, compare order) []string {
	rank := map[string]int{}
	for _, m := range members {
		best := map[string]int{}
		for _, o := range offers[m] {
			if Matches(pattern, o.Version) && o.Priority >= 0 {
				best[Own(o.Version)] = max(best[Own(o.Version)], o.Priority)
			}
		}
		for own, priority := range best {
			if others, known := rank[own]; known {
				priority = min(priority, others)
			}
			rank[own] = priority
		}
	}
	return slices.SortedFunc(maps.Keys(rank), func(a, b string) int { return cmp.Or(rank[b]-rank[a], compare(b, a)) })
}

// common returns the own versions that every member has an offer of, newest first.
func common(members []string, offers map[string][]Offer, compare order) []string {
	return slices.DeleteFunc(owns(members, "*", offers, compare), func(own string) bool {
		return slices.ContainsFunc(members, func(m string) bool {
			return !slices.ContainsFunc(offers[m], func(o Offer) bool { return Own(o.Version) == own })
		})
	})
}

// availableAll lists the available versions of packages with their sources; packages with the same
// answer share a line.
func availableAll(names []string, source string, of func(name string) ([]Offer, State)) (lines []string) {
	var all []string
	about := map[string][]string{}
	for _, name := range names {
		offers, found := of(name)
		what := available(offers, source, found)
		if about[what] == nil {
			all = append(all, what)
		}
		about[what] = append(about[what], name)
	}
	for _, what := range all {
		lines = append(lines, strings.Join(about[what], ", ")+": "+what)
	}
	return lines
}

func available(offers []Offer, source string, found State) string {
	const most = 6
	var places []string
	at := map[string][]string{} // versions, newest first
	for _, o := range offers[:min(most, len(offers))] {
		from := strings.Join(o.From, " and ")
		if at[from] == nil {
			places = append(places, from)
		}
		at[from] = append(at[from], o.Version+map[bool]string{true: fmt.Sprintf(" (kept out by its priority, %d)", o.Priority)}[o.Priority < 0])
	}
	s := "no " + source + " has it"
	for i, from := range places {
		if places[i] = strings.Join(at[from], ", "); from != "" {
			places[i] += " from " + from
		}
	}
	if len(places) > 0 {
		s = strings.Join(places, "; ")
	}
	if len(offers) > most {
		s += fmt.Sprintf(", and %d more", len(offers)-most)
	}
	if found.Installed() {
		s += "; installed is " + found.Version
	}
	return s
}

// WithoutHeaders advises on a kernel whose headers are not available. It never advises to remove
// the running kernel.
// Source: proc(5), /proc/sys/kernel/osrelease.
func WithoutHeaders(v host.View, kernel string) string {
	running, _ := v.ReadFile("/proc/sys/kernel/osrelease")
	if v.Live() && strings.TrimSpace(string(running)) == kernel {
		return "install a kernel whose headers are available and reboot into it, or install the headers of " + kernel + ", which runs now, from another source"
	}
	return "take a kernel whose headers are available; remove kernel " + kernel + " if it is not meant to run"
}
