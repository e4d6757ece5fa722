// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// transact makes the changes in one transaction of dnf's. It asks dnf first what that would do, and touches nothing if
// it is anything else than what the changes say.
func (a dnf) Transact(ctx context.Context, h host.Host, changes []converge.Change) error {
	if err := a.free(ctx, h); err != nil {
		return err
	}
	d, err := a.single(ctx, h)
	if err != nil {
		return err
	}
	now := slices.Clone(changes)
	for i, c := range now {
		now[i].Before = d.packages[c.Name].String()
	}
	if work := packages.Due(now); len(work) > 0 {
		if err := a.move(ctx, h, d, work, now); err != nil {
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
	return provenRPM(ctx, h, changes)
}

// move installs and removes.
func (a dnf) move(ctx context.Context, h host.Host, d rpmDatabase, work, all []converge.Change) error {
	return packages.OnceMore(ctx, func() error { return a.moveBy(ctx, h, d, work, all) }, func() error {
		_, err := a.run(ctx, h, "makecache", "--refresh")
		return err
	})
}

// moveBy goes by the lists as they are.
func (a dnf) moveBy(ctx context.Context, h host.Host, d rpmDatabase, work, all []converge.Change) error {
	var names []string
	for _, c := range work {
		names = append(names, c.Name)
	}
	offers, err := a.offers(ctx, h, names)
	if err != nil {
		return err
	}
	r := dnfResolution{dnf: a, v: h, d: d, offers: offers, changes: work}
	again, err := a.unfiltered().offers(ctx, h, names)
	if err != nil {
		return err
	}
	if r.hidden(again) {
		a = a.unfiltered()
		r.dnf, r.offers = a, again
	}
	if err := r.check(ctx); err != nil {
		return err
	}
	t := r.task()
	moves, err := a.simulate(ctx, h, t)
	if err != nil {
		return err
	}
	if err := exactlyDnf(moves, all, work, d); err != nil {
		return err
	}
	if err := r.keep(ctx, h, again); err != nil {
		return err
	}
	out, err := a.do(ctx, h, t)
	if err != nil {
		return err
	}
	return scriptsRan(string(out))
}

// keep brings what gets replaced to our own folder, as far as a repository still has it.
func (r *dnfResolution) keep(ctx context.Context, h host.Host, again map[string][]packages.Offer) error {
	now := func(name string) packages.State { return r.d.packages[name] }
	kept := func(name, version string) string { return storedRPM(h, name, version) }
	return packages.Unkept(ctx, r.changes, now, kept, r.fetch(ctx, h, packages.Replaced(r.changes, now), again))
}

// hidden says whether a version that is asked for is to be had, and a stream hides it: on the way back from another stream.
func (r *dnfResolution) hidden(unfiltered map[string][]packages.Offer) bool {
	return slices.ContainsFunc(r.changes, func(c converge.Change) bool {
		after := packages.Parse(c.After)
		_, seen := packages.Find(r.offers[c.Name], after.Version)
		_, there := packages.Find(unfiltered[c.Name], after.Version)
		return after.Installed() && !seen && (there || storedRPM(r.v, c.Name, after.Version) != "")
	})
}

func (r *dnfResolution) fetch(ctx context.Context, h host.Host, changes []converge.Change, again map[string][]packages.Offer) error {
	var want []string
	for _, c := range changes {
		version := r.d.packages[c.Name].Version
		if _, ok := packages.Find(again[c.Name], version); ok && storedRPM(h, c.Name, version) == "" {
			want = append(want, r.d.spec(c.Name))
		}
	}
	if len(want) == 0 {
		return nil
	}
	if err := packages.Folder(h); err != nil {
		return err
	}
	_, err := r.unfiltered().run(ctx, h, append([]string{"download", "--destdir", packages.Store}, want...)...)
	if err != nil && strings.Contains(err.Error(), "No such command") {
		return errors.New("dnf does not know the command download, which dnf-plugins-core brings")
	}
	return err
}

// provenRPM reads the database again and makes sure that every change holds: dnf's exit code alone proves nothing.
func provenRPM(ctx context.Context, v host.View, changes []converge.Change) error {
	d, err := readRPM(ctx, v)
	if err != nil {
		return err
	}
	var because []string
	for _, c := range changes {
		if now := d.packages[c.Name].String(); now != c.After {
			because = append(because, fmt.Sprintf("%s is %q and should be %q", c.Name, now, c.After))
		}
	}
	if len(because) == 0 {
		return nil
	}
	return &converge.Trouble{
		What:    "cannot make packages stand as planned: dnf said that it was done, and rpm's database says otherwise",
		Because: because,
		Try:     []string{"dnf history info last, which says what was done"},
	}
}
