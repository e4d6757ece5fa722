// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// An offer is a version of a package that apt can install.
type offer struct {
	version  string
	priority int      // as pinned: apt_preferences(5)
	from     []string // sources: "http://debian.example/debian bookworm/main amd64"
}

// offers asks apt which versions of packages are to be had, newest first. What is only installed is not among them.
func (a apt) offers(ctx context.Context, v host.View, names []string) (map[string][]offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]offer{}, nil
	}
	out, err := v.Ask(ctx, slices.Concat([]string{"apt-cache"}, readOnly(), []string{"policy", "--"}, names)...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	return parsePolicy(string(out)), nil
}

// parsePolicy reads what apt-cache policy NAME… prints: versions with their priority stand behind five signs, the
// sources of each behind eight.
func parsePolicy(out string) map[string][]offer {
	all := map[string][]offer{}
	name := ""
	var last *offer
	end := func() {
		if last != nil && len(last.from) > 0 {
			all[name] = append(all[name], *last)
		}
		last = nil
	}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case line[0] != ' ':
			end()
			name = strings.TrimSuffix(line, ":")
		case len(words) >= 2 && (strings.HasPrefix(line, " *** ") || strings.HasPrefix(line, "     ") && line[5:6] != " "):
			end()
			if words[0] == "***" {
				words = words[1:]
			}
			if len(words) < 2 {
				continue
			}
			if p, err := strconv.Atoi(words[1]); err == nil {
				last = &offer{version: words[0], priority: p}
			}
		case last != nil && strings.HasPrefix(line, "        ") && len(words) >= 2 && words[1] != dpkgStatus:
			if _, err := strconv.Atoi(words[0]); err == nil {
				last.from = append(last.from, strings.TrimSuffix(strings.Join(words[1:], " "), " Packages"))
			}
		}
	}
	end()
	return all
}

// find returns the offer of a version.
func find(offers []offer, version string) (offer, bool) {
	i := slices.IndexFunc(offers, func(o offer) bool { return o.version == version })
	if i < 0 {
		return offer{}, false
	}
	return offers[i], true
}

// choose picks a version for each member of a group: the newest own version that matches and that each of them has an
// offer of, all from one source where one has all of them. Two suppliers' packages of one version do not fit together.
// site is that source; "" where the packages come from several.
func choose(members []string, pattern string, offers map[string][]offer) (versions map[string]string, site string, ok bool) {
	for _, own := range owns(members, pattern, offers) {
		type tally struct {
			have     map[string]string
			priority int
		}
		from := map[string]*tally{}
		all := tally{have: map[string]string{}}
		for _, m := range members {
			for _, o := range newest(offers[m]) {
				if Own(o.version) != own || o.priority < 0 {
					continue
				}
				for _, source := range o.from {
					site, _, _ := strings.Cut(source, " ")
					if from[site] == nil {
						from[site] = &tally{have: map[string]string{}}
					}
					if from[site].have[m] == "" {
						from[site].have[m] = o.version
						from[site].priority = max(from[site].priority, o.priority)
					}
				}
				if all.have[m] == "" {
					all.have[m] = o.version
				}
			}
		}
		var best *tally
		for _, name := range slices.Sorted(maps.Keys(from)) {
			if t := from[name]; len(t.have) == len(members) && (best == nil || t.priority > best.priority) {
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

// newest orders offers by priority, then by version.
func newest(offers []offer) []offer {
	return slices.SortedFunc(slices.Values(offers), func(a, b offer) int {
		if a.priority != b.priority {
			return b.priority - a.priority
		}
		return compareDebian(b.version, a.version)
	})
}

// owns returns the own versions that match, of any member, newest first.
func owns(members []string, pattern string, offers map[string][]offer) []string {
	var all []string
	for _, m := range members {
		for _, o := range offers[m] {
			if matches(pattern, o.version) && o.priority >= 0 {
				all = append(all, Own(o.version))
			}
		}
	}
	slices.SortFunc(all, func(a, b string) int { return compareDebian(b, a) })
	return slices.Compact(all)
}

// common returns the own versions that every member has an offer of, newest first.
func common(members []string, offers map[string][]offer) []string {
	return slices.DeleteFunc(owns(members, "*", offers), func(own string) bool {
		return slices.ContainsFunc(members, func(m string) bool {
			return !slices.ContainsFunc(offers[m], func(o offer) bool { return Own(o.version) == own })
		})
	})
}

// told says which versions of a package are to be had, and from where.
func told(name string, offers []offer, found State) string {
	return name + ": " + toBeHad(offers, found)
}

// toldAll is told of several packages: of those of which the same is to be said, once.
func toldAll(names []string, of func(name string) ([]offer, State)) (lines []string) {
	var said []string
	about := map[string][]string{}
	for _, name := range names {
		what := toBeHad(of(name))
		if about[what] == nil {
			said = append(said, what)
		}
		about[what] = append(about[what], name)
	}
	for _, what := range said {
		lines = append(lines, strings.Join(about[what], ", ")+": "+what)
	}
	return lines
}

func toBeHad(offers []offer, found State) string {
	const most = 6
	var places []string
	at := map[string][]string{} // versions, newest first
	for i, o := range newest(offers) {
		if i == most {
			break
		}
		from := strings.Join(o.from, " and ")
		if at[from] == nil {
			places = append(places, from)
		}
		at[from] = append(at[from], o.version)
	}
	s := "no source has it"
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
