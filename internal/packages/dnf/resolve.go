// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A solver is dnf with rpm's database as it was read for one request.
type solver struct {
	dnf
	d rpmDatabase
}

// Resolve closes what is open, and asks dnf what else would change.
func (a dnf) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	d, err := readRPM(ctx, v)
	if err != nil {
		return nil, err
	}
	ask.Changes = d.withPlugin(ask.Changes)
	if err := a.streamed(ctx, v, ask, d); err != nil {
		return nil, err
	}
	r, err := packages.Begin(ctx, v, ask, d.packages, solver{a, d})
	if err != nil {
		return nil, err
	}
	if err := r.Draw(ctx, v); err != nil {
		return nil, err
	}
	for i, c := range r.Changes { // why a package is installed dnf records by itself: see readRPM
		after := packages.Parse(c.After)
		after.Auto = false
		r.Changes[i].After = after.String()
	}
	again, err := a.unfiltered().Offers(ctx, v, r.Replaced())
	r.Lost(again, func(name, version string) bool { return storedRPM(v, name, version) != "" })
	return r.Changes, err
}

// Lacks asks the repositories once more, for what streams hide too.
func (a dnf) Lacks(ctx context.Context, v host.View, r *packages.Resolution) error {
	r.Solver = solver{dnf: a}
	again, err := a.unfiltered().Offers(ctx, v, r.Replaced())
	r.Lost(again, func(name, version string) bool { return storedRPM(v, name, version) != "" })
	return err
}

// withPlugin adds the plugin that obeys locks where locks are wanted: without it they are words in a file.
func (d rpmDatabase) withPlugin(changes []converge.Change) []converge.Change {
	if d.locks.plugin || d.packages[lockPlugin].Installed() || slices.ContainsFunc(changes, func(c converge.Change) bool { return c.Name == lockPlugin }) {
		return changes
	}
	if !slices.ContainsFunc(changes, func(c converge.Change) bool { return packages.Parse(c.After).Held }) {
		return changes
	}
	return append(slices.Clone(changes), converge.Change{
		Ref: converge.Ref{Kind: "package", Name: lockPlugin}, After: packages.State{Version: lockPlugin + "=*"}.String(), Dependency: true, Why: "dnf keeps to locked versions by it",
	})
}

func (solver) Words() packages.Words {
	return packages.Words{Source: "repository", Refresh: "dnf makecache --refresh", Show: "dnf --assumeno install", At: "-"}
}

// Without is empty: rpm keeps no configuration but what was edited, as .rpmsave.
func (solver) Without(host.View, string) converge.State { return "" }

// Essential is false: dnf itself refuses to remove what is protected: dnf.conf(5), protected_packages.
func (solver) Essential(string) bool { return false }

// Offers asks which versions are available.
func (a dnf) Offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]packages.Offer{}, nil
	}
	const format = "%{name}\t%{epoch}\t%{version}\t%{release}\t%{arch}\t%{repoid}"
	argv := slices.Concat([]string{"dnf", "-q"}, a.options(v), []string{"repoquery", "--available", "--showduplicates", "--qf", format}, names)
	out, err := v.Ask(ctx, argv...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	all := parseOffers(string(out), names, ranks(v))
	for name := range all {
		all[name] = packages.Newest(all[name], a.Compare)
	}
	return all, nil
}

// ranks are the repositories' priorities, by id, as Offer has them: for dnf the lowest comes first, and 99 is what it has where none is
// set (dnf.conf(5), priority). What modules and excludes hide from dnf it does not offer.
func ranks(v host.View) map[string]int {
	rank := map[string]int{}
	for _, name := range packages.ListOf(v, dnfRepos) {
		repos, _ := reposIn(v, []string{dnfRepos + "/" + name}) // dnf names a file that it cannot read
		for _, r := range repos {
			if p, err := strconv.Atoi(r.values["priority"]); err == nil {
				rank[r.id] = max(0, unset+99-p)
			}
		}
	}
	return rank
}

// unset is the rank of a repository without a priority.
const unset = 1000

func parseOffers(out string, names []string, rank map[string]int) map[string][]packages.Offer {
	all := map[string][]packages.Offer{}
	for line := range strings.Lines(strings.ReplaceAll(out, `\t`, "\t")) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 6 {
			continue
		}
		p := rpmPackage{f[0], evr(f[1], f[2], f[3]), f[4]}
		o := packages.Offer{Version: p.evr, Priority: unset, From: []string{f[5]}}
		if has, known := rank[f[5]]; known {
			o.Priority = has
		}
		for _, name := range p.keys() {
			if slices.Contains(names, name) && !slices.ContainsFunc(all[name], func(b packages.Offer) bool { return b.Version == o.Version && b.From[0] == o.From[0] }) {
				all[name] = append(all[name], o)
			}
		}
	}
	return all
}

// Hidden says of packages that are available once another module stream is enabled, that the streams hide them.
func (s solver) Hidden(ctx context.Context, v host.View, what, pattern string, members []string, seen map[string][]packages.Offer) error {
	more := func(by dnf) (only []string, err error) {
		all, err := by.Offers(ctx, v, members)
		for _, m := range members {
			has := func(o packages.Offer) bool { return packages.Matches(pattern, o.Version) }
			if slices.ContainsFunc(all[m], has) && !slices.ContainsFunc(seen[m], has) {
				only = append(only, m)
			}
		}
		return only, err
	}
	only, err := more(s.unfiltered())
	if err != nil {
		return err
	}
	if len(only) == 0 {
		if only, err = more(s.unexcluded()); err != nil || len(only) == 0 {
			return err
		}
		return &trouble.Error{
			What:    fmt.Sprintf("cannot install %s: a repository has %s, and dnf's configuration excludes it", what, strings.Join(only, ", ")),
			Because: excludes(v),
			Try:     []string{"remove it from excludepkgs (or exclude) there, then run the same command again"},
			Err:     packages.ErrExcluded,
		}
	}
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot install %s: the repository has %s, and dnf's module streams hide it", what, strings.Join(only, ", ")),
		Because: []string{"no stream of " + driverModule + " is enabled"},
		Try:     []string{"dnf module list nvidia-driver, which shows the streams", "dnf module reset nvidia-driver, then run the same command again"},
	}
	if is, err := readStream(v, driverModule); err == nil && is != "" {
		t.Because = []string{fmt.Sprintf("stream %s:%s is enabled, and does not have that version", driverModule, is)}
	}
	return t
}

// excludes names the files and sections that hide packages from dnf: dnf.conf(5), excludepkgs, and exclude, its older name.
func excludes(v host.View) (found []string) {
	files := []string{"/etc/dnf/dnf.conf"}
	for _, name := range packages.ListOf(v, dnfRepos) {
		files = append(files, dnfRepos+"/"+name)
	}
	for _, file := range files {
		sections, _ := reposIn(v, []string{file})
		for _, r := range sections {
			for _, key := range []string{"excludepkgs", "exclude"} {
				if r.values[key] != "" {
					found = append(found, fmt.Sprintf("%s, [%s]: %s = %s", file, r.id, key, r.values[key]))
				}
			}
		}
	}
	return found
}
