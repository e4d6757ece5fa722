// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Transact makes the changes in one transaction of dnf's. It simulates the transaction first, and
// touches nothing if dnf would do anything but these changes.
func (a dnf) Transact(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := a.single(ctx, h)
	if err != nil {
		return err
	}
	now := packages.WithBefore(d.packages, changes)
	if len(packages.Due(now)) > 0 {
		if err := a.move(ctx, h, d, now); err != nil {
			return err
		}
		d, err = a.readRPM(ctx, h)
		if err != nil {
			return err
		}
	}

	locks, err := d.locksFor(now)
	if err != nil {
		return err
	}
	if err := locks.write(h); err != nil {
		return err
	}
	d, err = a.readRPM(ctx, h)
	if err != nil {
		return err
	}
	return packages.Verify("dnf", "dnf history info last", changes, d.packages)
}

// move installs and removes packages after a simulation has shown the same changes.
func (a dnf) move(ctx context.Context, h host.Host, d rpmDatabase, changes []converge.Change) error {
	if packages.Removes(changes) {
		return a.remove(ctx, h, d, changes)
	}

	visible, all, listErr := a.offersFor(ctx, h, changes)
	offers := visible
	switch {
	case listErr != nil && packages.InStore(h, a, changes): // dnf can read no list, and needs none
		a = a.unfiltered()
		a.more = append(a.more, "--disablerepo=*")
	case listErr != nil:
		return listErr
	case a.needsHidden(h, changes, visible, all):
		a = a.unfiltered()
		offers = all
	}

	s := solver{a, d}
	r := packages.Resolution{
		Changes:   changes,
		Installed: d.packages,
		Offers:    offers,
		Solver:    s,
	}
	if err := r.Check(ctx, h); err != nil {
		return err
	}
	if err := r.Confirm(ctx, h); err != nil {
		return err
	}
	fetchErr := s.fetch(ctx, h, r.Replaced(), all)
	if err := r.Unkept(ctx, h, cmp.Or(listErr, fetchErr)); err != nil {
		return err
	}

	out, err := a.do(ctx, h, s.task(h, changes, offers))
	if err != nil {
		return err
	}
	return scriptsRan(string(out))
}

func (a dnf) remove(ctx context.Context, h host.Host, d rpmDatabase, changes []converge.Change) error {
	s := solver{a, d}
	r := packages.Resolution{Changes: changes, Installed: d.packages, Solver: s}
	if err := r.Confirm(ctx, h); err != nil {
		return err
	}
	_, err := a.do(ctx, h, s.task(h, changes, nil))
	return err
}

// offersFor returns the offers that dnf sees of the packages that change, and those that it would
// see without module streams. It asks for all only if a version is not among the visible ones.
func (a dnf) offersFor(
	ctx context.Context,
	h host.Host,
	changes []converge.Change,
) (visible, all map[string][]packages.Offer, err error) {
	due := packages.Due(changes)
	names := slices.Collect(maps.Keys(packages.Named(due)))
	visible, err = a.Offers(ctx, h, names)
	lacksOne := func(c converge.Change) bool {
		return lacks(visible, c.Name, c.Before) || lacks(visible, c.Name, c.After)
	}
	if err != nil || !slices.ContainsFunc(due, lacksOne) {
		return visible, visible, err
	}
	all, err = a.unfiltered().Offers(ctx, h, names)
	return visible, all, err
}

// lacks reports whether a state has a version without an offer.
func lacks(offers map[string][]packages.Offer, name string, state converge.State) bool {
	p := packages.Parse(state)
	_, offered := packages.Find(offers[name], p.Version)
	return p.Installed() && !offered
}

// needsHidden reports whether a change needs a version that a stream hides: it belongs to a
// rollback from another stream.
func (a dnf) needsHidden(
	v host.View, changes []converge.Change, visible, all map[string][]packages.Offer,
) bool {
	isHidden := func(c converge.Change) bool {
		if !lacks(visible, c.Name, c.After) {
			return false
		}
		version := packages.Parse(c.After).Version
		_, offered := packages.Find(all[c.Name], version)
		return offered || a.Stored(v, c.Name, version) != ""
	}
	return slices.ContainsFunc(packages.Due(changes), isHidden)
}

// Keep fetches installed packages to Store.
func (a dnf) Keep(ctx context.Context, h host.Host, names []string) error {
	d, err := a.readRPM(ctx, h)
	if err != nil {
		return err
	}
	inStore := func(name string) bool {
		return a.Stored(h, name, d.packages[name].Version) != ""
	}
	names = slices.DeleteFunc(slices.Clone(names), inStore)
	all, err := a.unfiltered().Offers(ctx, h, names)
	if err != nil {
		return err
	}
	return solver{a, d}.fetch(ctx, h, names, all)
}

// fetch downloads packages to Store, as far as a repository still has their version.
func (s solver) fetch(
	ctx context.Context,
	h host.Host,
	names []string,
	all map[string][]packages.Offer,
) error {
	var want []string
	for _, name := range names {
		version := s.d.packages[name].Version
		_, offered := packages.Find(all[name], version)
		if offered && s.Stored(h, name, version) == "" {
			want = append(want, s.d.spec(name))
		}
	}

	if len(want) == 0 {
		return nil
	}

	if err := packages.MakeStore(h); err != nil {
		return err
	}
	download := []string{"download", "--destdir", packages.Store}
	_, err := s.unfiltered().run(ctx, h, append(download, want...)...)
	return err
}

// find returns the installed package with a name.
func (d rpmDatabase) find(name string) (rpmPackage, bool) {
	i := slices.IndexFunc(d.list, func(p rpmPackage) bool {
		return slices.Contains(p.keys(), name) && p.evr == d.packages[name].Version
	})
	if i < 0 {
		return rpmPackage{}, false
	}
	return d.list[i], true
}

// spec returns the full name of the installed package with a name, so that dnf selects exactly that
// version.
func (d rpmDatabase) spec(name string) string {
	if p, ok := d.find(name); ok {
		return p.full()
	}
	return name
}
