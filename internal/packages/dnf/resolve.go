// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A dnfResolution is the work of one resolve.
type dnfResolution struct {
	dnf
	v       host.View
	d       rpmDatabase
	offers  map[string][]packages.Offer
	changes []converge.Change
	family  *packages.Family
	chosen  packages.ChoiceOf // of the family, where it is among the changes
}

// begin asks for candidates and closes what is open.
func (a dnf) begin(ctx context.Context, v host.View, ask packages.Request) (dnfResolution, error) {
	d, err := readRPM(ctx, v)
	if err != nil {
		return dnfResolution{}, err
	}
	r := dnfResolution{dnf: a, v: v, d: d, changes: slices.Clone(ask.Changes), family: ask.Family}
	if r.offers, err = a.offers(ctx, v, ask.Names(d.packages)); err != nil {
		return r, err
	}
	r.plugin()
	if err := r.closeGroups(ctx, ask.Stands); err != nil {
		return r, err
	}
	if r.changes, err = r.family.With(r.changes, d.packages, r.offers, r.chosen); err != nil {
		return r, err
	}
	for i, c := range r.changes {
		if packages.Parse(c.After).Version == packages.Removed {
			r.changes[i].After = "" // rpm keeps no configuration but what was edited, as .rpmsave
		}
	}
	return r, nil
}

// resolve closes what is open, and asks dnf what else would change.
func (a dnf) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	if err := a.streamed(ctx, v, ask); err != nil {
		return nil, err
	}
	r, err := a.begin(ctx, v, ask)
	if err != nil {
		return nil, err
	}
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	if err := r.draw(ctx); err != nil {
		return nil, err
	}
	if err := r.family.Mixed(r.changes, r.chosen); err != nil {
		return nil, err
	}
	r.family.Hold(r.changes)
	for i, c := range r.changes { // why a package is installed is dnf's to keep: see readRPM
		after := packages.Parse(c.After)
		after.Auto = false
		r.changes[i].After = after.String()
	}
	return r.changes, r.keeps(ctx)
}

// plugin brings the plugin that obeys locks where locks are wanted: without it they are words in a file.
func (r *dnfResolution) plugin() {
	if r.d.locks.plugin || r.d.packages[lockPlugin].Installed() {
		return
	}
	for _, c := range r.changes {
		if c.Name == lockPlugin {
			return
		}
	}
	for _, c := range r.changes {
		if packages.Parse(c.After).Held {
			r.changes = append(r.changes, converge.Change{
				Kind: c.Kind, Name: lockPlugin, After: packages.State{Version: lockPlugin + "=*"}.String(), Drawn: true, Why: "dnf keeps to locked versions by it",
			})
			return
		}
	}
}

// offers asks which versions are to be had.
func (a dnf) offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]packages.Offer{}, nil
	}
	const format = "%{name}\t%{epoch}\t%{version}\t%{release}\t%{arch}\t%{repoid}"
	argv := slices.Concat([]string{"dnf", "-q"}, a.options(), []string{"repoquery", "--available", "--showduplicates", "--qf", format}, names)
	out, err := v.Ask(ctx, argv...)
	if err != nil {
		return nil, explainDnf(v, string(out), err)
	}
	return parseOffers(string(out), names), nil
}

func parseOffers(out string, names []string) map[string][]packages.Offer {
	all := map[string][]packages.Offer{}
	for line := range strings.Lines(strings.ReplaceAll(out, `\t`, "\t")) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 6 {
			continue
		}
		p := rpmPackage{f[0], evr(f[1], f[2], f[3]), f[4]}
		o := packages.Offer{Version: p.evr, From: []string{f[5]}}
		if strings.HasPrefix(f[5], "gpuadm-") {
			o.Priority = 1 // what the spec names comes before what others have set up
		}
		for _, name := range p.keys() {
			if slices.Contains(names, name) && !slices.ContainsFunc(all[name], func(b packages.Offer) bool { return b.Version == o.Version && b.From[0] == o.From[0] }) {
				all[name] = append(all[name], o)
			}
		}
	}
	return all
}

// closeGroups fills in the versions of groups.
func (r *dnfResolution) closeGroups(ctx context.Context, stands map[string]string) error {
	groups := map[string][]int{} // GROUP=PATTERN
	for i, c := range r.changes {
		after := packages.Parse(c.After)
		if _, _, ok := after.Open(); ok {
			groups[after.Version] = append(groups[after.Version], i)
		}
	}
	for _, open := range packages.FamilyFirst(groups, r.family) {
		group, pattern, _ := strings.Cut(open, "=")
		if own := stands[group]; own != "" {
			pattern = own
		}
		var members []string
		for _, i := range groups[open] {
			members = append(members, r.changes[i].Name)
		}
		if group == lockPlugin {
			more, err := r.dnf.offers(ctx, r.v, members)
			if err != nil {
				return err
			}
			maps.Copy(r.offers, more)
		}
		chosen, site, ok := packages.Choose(members, pattern, r.offers)
		if !ok {
			return r.gone(ctx, group, pattern, members, stands[group])
		}
		if r.family != nil && r.family.Group == group {
			r.chosen = packages.ChoiceOf{Own: packages.Own(chosen[members[0]]), Site: site}
		}
		if fits := r.family.Fitting(members[0], r.chosen, r.offers[members[0]]); pattern == "*" && fits != "" {
			chosen[members[0]] = fits
		}
		for _, i := range groups[open] {
			after := packages.Parse(r.changes[i].After)
			after.Version = chosen[r.changes[i].Name]
			r.changes[i].After = after.String()
			r.changes[i].Why += packages.Missed(r.changes[i].Name, chosen[r.changes[i].Name], members, pattern, r.offers)
		}
	}
	return nil
}

// gone says that a group cannot be had in one version: what each member is to be had in, and from where, or that it is
// there and a stream hides it.
func (r *dnfResolution) gone(ctx context.Context, group, pattern string, members []string, stands string) error {
	hidden, err := r.unfiltered().offers(ctx, r.v, members)
	if err != nil {
		return err
	}
	if t := r.hiddenBy(group+" "+pattern, pattern, members, hidden); t != nil {
		return t
	}
	t := &converge.Trouble{Because: packages.ToldAll(members, func(m string) ([]packages.Offer, packages.State) { return r.offers[m], r.d.packages[m] })}
	var lack []string
	for _, m := range members {
		if !slices.ContainsFunc(r.offers[m], func(o packages.Offer) bool { return packages.Matches(pattern, o.Version) }) {
			lack = append(lack, m)
		}
	}
	t.What = fmt.Sprintf("cannot install %s %s: no repository has that version of every package of it", group, pattern)
	if len(lack) > 0 {
		t.What = fmt.Sprintf("cannot install %s %s: no repository has that version of %s", group, pattern, strings.Join(lack, ", "))
	}
	if stands != "" {
		t.Because = append(t.Because, fmt.Sprintf("the other packages of %s stand at %s, and all must be the same", group, stands))
	}
	if all := packages.Common(members, r.offers); len(all) > 0 {
		t.Try = append(t.Try, fmt.Sprintf("ask for a version that all have: %s", strings.Join(all[:min(len(all), 5)], ", ")))
	}
	t.Try = append(t.Try, "dnf makecache --refresh, if the repository has changed since")
	return t
}

// hiddenBy returns what to say of packages that are to be had once another module stream is enabled; nil if that is not it.
func (r *dnfResolution) hiddenBy(what, pattern string, members []string, hidden map[string][]packages.Offer) error {
	var only []string
	for _, m := range members {
		has := func(o packages.Offer) bool { return packages.Matches(pattern, o.Version) }
		if slices.ContainsFunc(hidden[m], has) && !slices.ContainsFunc(r.offers[m], has) {
			only = append(only, m)
		}
	}
	if len(only) == 0 {
		return nil
	}
	t := &converge.Trouble{
		What: fmt.Sprintf("cannot install %s: the repository has %s, and dnf's module streams hide it", what, strings.Join(only, ", ")),
		Try:  []string{"dnf module list nvidia-driver, which shows the streams", "dnf module reset nvidia-driver, then run the same command again"},
	}
	if is := enabledStream(r.v, driverModule); is != "" {
		t.Because = []string{fmt.Sprintf("stream %s:%s is enabled, and does not have that version", driverModule, is)}
	} else {
		t.Because = []string{"no stream of " + driverModule + " is enabled"}
	}
	return t
}

// check makes sure that each version asked for is to be had: in a repository, or as a file of ours.
func (r *dnfResolution) check(ctx context.Context) error {
	for _, c := range packages.Due(r.changes) {
		after, found := packages.Parse(c.After), r.d.packages[c.Name]
		if !after.Installed() {
			continue
		}
		if _, ok := packages.Find(r.offers[c.Name], after.Version); ok || storedRPM(r.v, c.Name, after.Version) != "" {
			continue
		}
		hidden, err := r.unfiltered().offers(ctx, r.v, []string{c.Name})
		if err != nil {
			return err
		}
		if t := r.hiddenBy(c.Name+" "+after.Version, packages.Own(after.Version), []string{c.Name}, hidden); t != nil {
			return t
		}
		return &converge.Trouble{
			What:    fmt.Sprintf("cannot install package %s %s: no repository has that version", c.Name, after.Version),
			Because: []string{packages.Told(c.Name, r.offers[c.Name], found)},
			Try:     []string{"ask for a version that is to be had", "dnf makecache --refresh, if the repository has changed since"},
		}
	}
	return nil
}

// draw adds the changes that dnf would make beside those asked for.
func (r *dnfResolution) draw(ctx context.Context) error {
	t, moves, err := r.drawn(ctx)
	if err != nil || t.empty() {
		return err
	}
	asked := map[string]bool{}
	for _, c := range r.changes {
		asked[c.Name] = true
	}
	slices.SortStableFunc(moves, func(a, b dnfMove) int { return cmp.Compare(a.name, b.name) })
	for _, m := range moves {
		name := m.key(asked)
		if asked[name] {
			continue // exactlyDnf compares
		}
		asked[name] = true
		found := r.d.packages[name]
		if m.gone && r.family != nil && !r.family.Has(name, found.Version) {
			return r.refused(t, name, fmt.Sprintf("dnf would remove %s %s, which depends on what would change and is no part of the driver", name, found.Version))
		}
		if found.Held && found.Installed() {
			return r.refused(t, name, fmt.Sprintf("dnf would change it, and somebody has locked it at %s", found.Version))
		}
		c := converge.Change{Kind: "package", Name: name, Before: found.String(), Drawn: true, Why: "dependency"}
		if m.gone {
			c.Why = "cannot stay beside what is installed"
		} else {
			c.After = packages.State{Version: m.evr}.String()
		}
		r.changes = append(r.changes, c)
	}
	if err := exactlyDnf(moves, r.changes, packages.Due(r.changes), r.d); err != nil {
		return r.refused(t, packages.Due(r.changes)[0].Name, wordsIn(err))
	}
	return nil
}

// drawn asks dnf what the task would draw along. dnf has no pins: where a dependency allows several versions of a part of the
// family it takes the newest. Such a part is asked for in the chosen version, and dnf is asked again.
func (r *dnfResolution) drawn(ctx context.Context) (task, []dnfMove, error) {
	for {
		t := r.task()
		if t.empty() {
			return t, nil, nil
		}
		moves, err := r.simulate(ctx, r.v, t)
		if err != nil {
			changes, more := r.family.Needed(r.changes, r.d.packages, r.offers, r.chosen)
			if r.changes = changes; more {
				continue
			}
			return t, nil, err
		}
		asked := map[string]bool{}
		for _, c := range r.changes {
			asked[c.Name] = true
		}
		var wrong []string
		for _, m := range moves {
			if name := m.key(asked); !m.gone && !asked[name] && r.family.Has(name, m.evr) && r.chosen.Own != "" && packages.Own(m.evr) != r.chosen.Own {
				wrong = append(wrong, name)
			}
		}
		if len(wrong) == 0 {
			return t, moves, nil
		}
		offers, err := r.dnf.offers(ctx, r.v, wrong)
		if err != nil {
			return t, nil, err
		}
		more := 0
		for _, name := range wrong {
			found := r.d.packages[name]
			r.offers[name] = offers[name]
			if to, _ := r.family.Fit(found, r.chosen, offers[name]); to.Installed() {
				to.Auto = found.Auto || !found.Installed()
				r.changes = append(r.changes, converge.Change{Kind: "package", Name: name, Before: found.String(), After: to.String(), Why: "part of the driver", Drawn: true})
				more++
			}
		}
		if more == 0 {
			return t, moves, nil // mixed refuses it
		}
	}
}

func wordsIn(err error) string {
	if t, ok := err.(*converge.Trouble); ok && len(t.Because) > 0 {
		return t.Because[0]
	}
	return err.Error()
}

func (r *dnfResolution) refused(t task, name, why string) error {
	what := slices.Concat(t.install, t.reinstall)
	return &converge.Trouble{
		What:    fmt.Sprintf("cannot install %s: package %s stands in the way", strings.Join(what, " "), name),
		Because: []string{why},
		Try:     []string{"dnf --assumeno install " + strings.Join(what, " ") + ", which shows what dnf would do"},
	}
}

// keeps says of what gets replaced whether it can be had again. Of those asked for half is nothing: if one cannot go
// back, none does.
func (r *dnfResolution) keeps(ctx context.Context) error {
	var names []string
	for _, c := range r.changes {
		if before := packages.Parse(c.Before); before.Installed() && before.Version != packages.Parse(c.After).Version {
			names = append(names, c.Name)
		}
	}
	again, err := r.unfiltered().offers(ctx, r.v, names)
	if err != nil {
		return err
	}
	packages.Keeps(r.changes, func(name, version string) string {
		if _, ok := packages.Find(again[name], version); ok || storedRPM(r.v, name, version) != "" {
			return ""
		}
		return fmt.Sprintf("no repository has %s %s any more", name, version)
	})
	return nil
}
