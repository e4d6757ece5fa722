// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Transact makes the changes in one transaction of dnf's. It asks dnf first what that would do, and touches nothing if
// it is anything else than what the changes say.
func (a dnf) Transact(ctx context.Context, h host.Host, changes []converge.Change) error {
	if err := a.free(ctx, h); err != nil {
		return err
	}
	d, err := a.single(ctx, h)
	if err != nil {
		return err
	}
	now := packages.From(d.packages, changes)
	if len(packages.Due(now)) > 0 {
		if err := a.move(ctx, h, d, now); err != nil {
			return err
		}
		if d, err = readRPM(ctx, h); err != nil {
			return err
		}
	}
	l, err := d.locks.as(d, now)
	if err != nil {
		return err
	}
	if err := l.write(h); err != nil {
		return err
	}
	if d, err = readRPM(ctx, h); err != nil {
		return err
	}
	return packages.Proven("dnf", changes, d.packages)
}

// move installs and removes, after dnf has shown that it would do just that. A version that a stream hides is one of the way
// back from another stream.
func (a dnf) move(ctx context.Context, h host.Host, d rpmDatabase, changes []converge.Change) error {
	var names []string
	for _, c := range packages.Due(changes) {
		names = append(names, c.Name)
	}
	if s := (solver{a, d}); packages.Removes(changes) {
		r := packages.Resolution{Changes: changes, Installed: d.packages, Solver: s}
		if err := r.Exactly(ctx, h); err != nil {
			return err
		}
		_, err := a.do(ctx, h, s.task(h, changes, nil))
		return err
	}
	offers, err := a.Offers(ctx, h, names)
	if err != nil {
		return err
	}
	all, err := a.unfiltered().Offers(ctx, h, names)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(packages.Due(changes), func(c converge.Change) bool {
		after := packages.Parse(c.After)
		_, seen := packages.Find(offers[c.Name], after.Version)
		_, there := packages.Find(all[c.Name], after.Version)
		return after.Installed() && !seen && (there || storedRPM(h, c.Name, after.Version) != "")
	}) {
		a, offers = a.unfiltered(), all
	}
	s := solver{a, d}
	r := packages.Resolution{Changes: changes, Installed: d.packages, Offers: offers, Solver: s}
	if err := r.Check(ctx, h); err != nil {
		return err
	}
	if err := r.Exactly(ctx, h); err != nil {
		return err
	}
	if err := r.Unkept(ctx, h, s.fetch(ctx, h, r.Replaced(), all)); err != nil {
		return err
	}
	out, err := a.do(ctx, h, s.task(h, changes, offers))
	if err != nil {
		return err
	}
	return scriptsRan(string(out))
}

// Keep brings installed packages to Store.
func (a dnf) Keep(ctx context.Context, h host.Host, names []string) error {
	d, err := readRPM(ctx, h)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return storedRPM(h, name, d.packages[name].Version) != "" })
	all, err := a.unfiltered().Offers(ctx, h, names)
	if err != nil {
		return err
	}
	return solver{a, d}.fetch(ctx, h, names, all)
}

// fetch brings packages to Store, as far as a repository still has their version.
func (s solver) fetch(ctx context.Context, h host.Host, names []string, all map[string][]packages.Offer) error {
	var want []string
	for _, name := range names {
		version := s.d.packages[name].Version
		if _, ok := packages.Find(all[name], version); ok && storedRPM(h, name, version) == "" {
			want = append(want, s.d.spec(name))
		}
	}
	if len(want) == 0 {
		return nil
	}
	if err := packages.Folder(h); err != nil {
		return err
	}
	_, err := s.unfiltered().run(ctx, h, append([]string{"download", "--destdir", packages.Store}, want...)...)
	return err
}
