// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

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
	"github.com/gpuadm/gpuadm/internal/things"
)

// resolve closes what is open, and asks apt what else would change.
func (a apt) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	d, err := readDpkg(v)
	if err != nil {
		return nil, err
	}
	installed := map[string]packages.State{}
	for name, p := range d.packages {
		installed[name] = p.State
	}
	offers, err := a.offers(ctx, v, ask.Names(installed))
	if err != nil {
		return nil, err
	}
	r := resolution{apt: a, d: d, offers: offers, family: ask.Family}
	if r.changes, err = r.closeGroups(v, ask.Changes, ask.Stands); err != nil {
		return nil, err
	}
	if r.changes, err = r.family.With(r.changes, installed, offers, r.chosen); err != nil {
		return nil, err
	}
	for i, c := range r.changes {
		if packages.Parse(c.After).Version == packages.Removed {
			r.changes[i].After = r.d.without(v, c.Name)
		}
	}
	if err := r.check(v); err != nil {
		return nil, err
	}
	if err := r.draw(ctx, v, installed); err != nil {
		return nil, err
	}
	if err := r.family.Mixed(r.changes, r.chosen); err != nil {
		return nil, err
	}
	r.family.Hold(r.changes)
	if err := a.room(ctx, v, r.d, r.changes); err != nil {
		return nil, err
	}
	return r.changes, r.keeps(ctx, v)
}

// A resolution is the work of one resolve.
type resolution struct {
	apt
	d       dpkg
	offers  map[string][]packages.Offer
	changes []converge.Change
	family  *packages.Family
	chosen  packages.ChoiceOf // of the family, where it is among the changes
}

// closeGroups fills in the versions of groups.
func (r *resolution) closeGroups(v host.View, changes []converge.Change, stands map[string]string) ([]converge.Change, error) {
	changes = slices.Clone(changes)
	groups := map[string][]int{} // GROUP=PATTERN
	for i, c := range changes {
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
			members = append(members, changes[i].Name)
		}
		chosen, site, ok := packages.Choose(members, pattern, r.offers)
		if !ok {
			return nil, r.gone(v, group, pattern, members, stands[group])
		}
		if r.family != nil && r.family.Group == group {
			r.chosen = packages.ChoiceOf{Own: packages.Own(chosen[members[0]]), Site: site}
		}
		if fits := r.family.Fitting(members[0], r.chosen, r.offers[members[0]]); pattern == "*" && fits != "" {
			chosen[members[0]] = fits
		}
		for _, i := range groups[open] {
			after := packages.Parse(changes[i].After)
			after.Version = chosen[changes[i].Name]
			changes[i].After = after.String()
			changes[i].Why += packages.Missed(changes[i].Name, chosen[changes[i].Name], members, pattern, r.offers)
		}
	}
	return changes, nil
}

// gone says that a group cannot be had in one version: what each member is to be had in, and from where.
func (r *resolution) gone(v host.View, group, pattern string, members []string, stands string) error {
	what := strings.TrimSuffix(group+" "+pattern, " *")
	t := &converge.Trouble{What: fmt.Sprintf("cannot install %s: no source has that version of every package of it", what)}
	t.Because = packages.ToldAll(members, func(m string) ([]packages.Offer, packages.State) { return r.offers[m], r.d.packages[m].State })
	var lack []string
	for _, m := range members {
		if !slices.ContainsFunc(r.offers[m], func(o packages.Offer) bool { return packages.Matches(pattern, o.Version) }) {
			lack = append(lack, m)
		}
	}
	if len(lack) > 0 {
		t.What = fmt.Sprintf("cannot install %s: no source has that version of %s", what, strings.Join(lack, ", "))
	}
	if kernel, headers := strings.CutPrefix(group, "linux-headers-"); headers {
		t.What = fmt.Sprintf("%s%s: no source has its headers, %s", packages.NoHeaders, kernel, group)
		t.Try = append(t.Try, packages.WithoutHeaders(v, kernel))
		if with := things.WithHeaders(v); len(with) > 0 {
			t.Because = append(t.Because, "these kernels have headers: "+strings.Join(with, ", "))
		}
	}
	if stands != "" {
		t.Because = append(t.Because, fmt.Sprintf("the other packages of %s stand at %s, and all must be the same", group, stands))
	}
	if all := packages.Common(members, r.offers); len(all) > 0 {
		t.Try = append(t.Try, fmt.Sprintf("ask for a version that all have: %s", strings.Join(all[:min(len(all), 5)], ", ")))
	}
	t.Try = append(t.Try, "apt-get update, if the repository has changed since")
	return t
}

// check makes sure that each version asked for is to be had: here, or as a file of ours.
func (r *resolution) check(v host.View) error {
	for _, c := range packages.Due(r.changes) {
		after := packages.Parse(c.After)
		found := r.d.packages[c.Name].State
		if !after.Installed() || found.Installed() && found.Version == after.Version && found.Broken != "half-installed" {
			continue
		}
		if _, ok := packages.Find(r.offers[c.Name], after.Version); ok || stored(v, c.Name, after.Version) != "" {
			continue
		}
		t := &converge.Trouble{
			What:    fmt.Sprintf("cannot install package %s %s: no source has that version", c.Name, after.Version),
			Because: []string{packages.Told(c.Name, r.offers[c.Name], found)},
			Try:     []string{"ask for a version that is to be had", "apt-get update, if the repository has changed since"},
		}
		return t
	}
	return nil
}

// what is what apt is told: versions that only our folder has are told as files.
func (r *resolution) what(v host.View) (list []string) {
	for _, c := range packages.Due(r.changes) {
		to := packages.Parse(c.After)
		if _, ok := packages.Find(r.offers[c.Name], to.Version); !ok && to.Installed() {
			if file := stored(v, c.Name, to.Version); file != "" {
				list = append(list, file)
				continue
			}
		}
		list = append(list, install(c.Name, to))
	}
	return list
}

// files is what, with our own files wherever there are any; back says that nothing else is needed: such is the way back,
// which must not hang on a repository that has moved on, or on the network.
func (r *resolution) files(v host.View) (list []string, back bool) {
	back = true
	for _, c := range packages.Due(r.changes) {
		to := packages.Parse(c.After)
		file := stored(v, c.Name, to.Version)
		switch {
		case to.Installed() && file != "":
			list = append(list, file)
			continue
		case to.Installed() && to.Version != r.d.packages[c.Name].Version:
			back = false
		}
		list = append(list, install(c.Name, to))
	}
	return list, back
}

// draw adds the changes that apt would make beside those asked for.
func (r *resolution) draw(ctx context.Context, v host.View, installed map[string]packages.State) error {
	what := r.what(v)
	if len(what) == 0 {
		return nil
	}
	moves, err := r.simulate(ctx, v, r.d.native, what, r.pins())
	if err != nil {
		changes, more := r.family.Needed(r.changes, installed, r.offers, r.chosen)
		if r.changes = changes; more {
			moves, err = r.simulate(ctx, v, r.d.native, r.what(v), r.pins())
		}
	}
	if err != nil {
		return err
	}
	asked := map[string]bool{}
	for _, c := range r.changes {
		asked[c.Name] = true
		for _, m := range moves {
			if after := packages.Parse(c.After); m.name == c.Name && (m.version == "") == after.Installed() || m.name == c.Name && after.Installed() && m.version != after.Version {
				return r.refused(c.Name, fmt.Sprintf("apt would make it %q instead of %q", m.version, after.Version))
			}
		}
	}
	slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(a.name, b.name) })
	for _, m := range moves {
		found := r.d.packages[m.name]
		switch {
		case m.version == "" && found.essential:
			return r.refused(m.name, "apt would remove it, and this machine cannot do without it")
		case m.version == "" && r.family != nil && !asked[m.name] && !found.Auto && !r.family.Has(m.name, found.Version):
			return r.refused(m.name, fmt.Sprintf("apt would remove %s %s, which depends on what would change and is no part of the driver", m.name, found.Version))
		case found.Held && found.Installed() && !asked[m.name]:
			return r.refused(m.name, fmt.Sprintf("apt would change it, and somebody holds it at %s", found.Version))
		case asked[m.name]:
			continue
		}
		c := converge.Change{Kind: "package", Name: m.name, Before: found.State.String(), Drawn: true}
		if c.Why = "dependency"; m.version == "" {
			c.Why, c.After = "cannot stay beside what is installed", r.d.without(v, m.name)
		} else {
			c.After = packages.State{Version: m.version, Held: found.Held, Auto: found.Auto || !found.Installed()}.String()
		}
		r.changes = append(r.changes, c)
	}
	return nil
}

// pins have apt draw the parts of the family in the version that was just chosen, and not the newest that the repository has:
// a version asked for as 580.* is exact only now, and the pins on disk cannot say it.
func (r *resolution) pins() []packages.Pin {
	if r.family == nil || r.chosen.Own == "" {
		return nil
	}
	pins := r.family.Pins(r.chosen.Own)
	pins[len(pins)-1].Priority++ // above the pin on disk, which fits newer versions of the branch too
	return pins
}

func (r *resolution) refused(name, why string) error {
	var list []string
	for _, c := range packages.Due(r.changes) {
		if !c.Drawn {
			list = append(list, install(c.Name, packages.Parse(c.After)))
		}
	}
	return &converge.Trouble{
		What:    fmt.Sprintf("cannot install %s: package %s stands in the way", strings.Join(list, " "), name),
		Because: []string{why},
		Try:     []string{"apt-get -s install " + strings.Join(list, " ") + ", which shows what apt would do"},
	}
}

// keeps says of what gets replaced whether a source or a file of ours has it still.
func (r *resolution) keeps(ctx context.Context, v host.View) error {
	var names []string
	for _, c := range r.changes {
		if _, ok := r.offers[c.Name]; !ok {
			names = append(names, c.Name)
		}
	}
	more, err := r.apt.offers(ctx, v, names)
	if err != nil {
		return err
	}
	maps.Copy(r.offers, more)
	packages.Keeps(r.changes, func(name, version string) string {
		if _, ok := packages.Find(r.offers[name], version); ok || stored(v, name, version) != "" || cached(v, name, version) != "" {
			return ""
		}
		return fmt.Sprintf("no source has %s %s any more", name, version)
	})
	return nil
}
