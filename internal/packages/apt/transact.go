// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Transact makes the changes in one apt-get install, which touches nothing if it would do anything else than what the changes say: see
// Verify.
func (a apt) Transact(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	if d.interrupted {
		// apt refuses all work until dpkg has taken over what it left. Asked to set nothing, dpkg does that and no more:
		// configuring all that is left would run the scripts of what is about to be replaced.
		if err := a.again(ctx, h, "dpkg", "--set-selections"); err != nil {
			return err
		}
		if d, err = readDpkg(h); err != nil {
			return err
		}
	}
	now := packages.From(d.packages, changes)
	if len(packages.Due(now)) > 0 {
		if err := a.move(ctx, h, d, now); err != nil {
			if failed := a.markReached(ctx, h, err, now); failed != nil {
				err = host.Join(err, failed)
			}
			return err
		}
		if err := keepNew(ctx, h, now); err != nil {
			return err
		}
	}
	if err := a.purge(ctx, h, now); err != nil {
		return err
	}
	if err := a.mark(ctx, h, now); err != nil {
		return err
	}
	if d, err = readDpkg(h); err != nil {
		return err
	}
	return packages.Proven("apt", changes, d.packages)
}

// move installs and removes.
func (a apt) move(ctx context.Context, h host.Host, d dpkg, changes []converge.Change) error {
	var names []string
	for _, c := range packages.Due(changes) {
		names = append(names, c.Name)
	}
	get, err := a.hooked(changes)
	if err != nil {
		return err
	}
	install := func(args ...string) error { return a.again(ctx, h, packages.Quiet(h, slices.Concat(get, args)...)...) }
	if packages.Removes(changes) {
		return install(append(verb(changes), arguments(h, changes, nil)...)...)
	}
	offers, err := a.Offers(ctx, h, names)
	if err != nil {
		return err
	}
	r := packages.Resolution{Changes: changes, Installed: d.packages, Offers: offers, Solver: solver{a, d}}
	if err := r.Check(ctx, h); err != nil {
		return err
	}
	ours, back := files(h, changes)
	if err := r.Unkept(ctx, h, a.Keep(ctx, h, r.Replaced())); err != nil {
		return err
	}
	err = install(append(verb(changes), arguments(h, changes, offers)...)...)
	if failed := (*host.CommandError)(nil); back && errors.As(err, &failed) && strings.Contains(failed.Stderr, "Failed to fetch") {
		// No source has the versions any more, our own folder has. apt reads as its user _apt, who may not enter that.
		err = install(slices.Concat([]string{"-o", "APT::Sandbox::User=root"}, verb(changes), ours)...)
	}
	return err
}

// purge takes away what remains of packages that were not there at all.
func (a apt) purge(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	var names []string
	for _, c := range changes {
		if !packages.Parse(c.After).Installed() && packages.Parse(c.After).Broken == "" && d.packages[c.Name].Broken == packages.ConfigFiles {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return a.get(ctx, h, append([]string{"purge", "--"}, names...)...)
}

// markReached marks those packages that are converged after a transaction that failed for others: on the way back
// one script that still fails must not cost all others their holds.
func (a apt) markReached(ctx context.Context, h host.Host, failed error, changes []converge.Change) error {
	d, err := readDpkg(h)
	if busy := (*packages.Locked)(nil); err != nil || d.interrupted || errors.As(failed, &busy) || ctx.Err() != nil {
		return err
	}
	return a.mark(ctx, h, slices.DeleteFunc(slices.Clone(changes), func(c converge.Change) bool {
		found, after := d.packages[c.Name], packages.Parse(c.After)
		return !after.Installed() || found.Version != after.Version || found.Broken != ""
	}))
}

// mark sets and lifts holds and automatic marks.
func (a apt) mark(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	var auto, manual, hold, unhold []string
	for _, c := range changes {
		found, after := d.packages[c.Name], packages.Parse(c.After)
		if after.Installed() && found.Auto != after.Auto {
			if after.Auto {
				auto = append(auto, c.Name)
			} else {
				manual = append(manual, c.Name)
			}
		}
		if found.Held != after.Held {
			if after.Held {
				hold = append(hold, c.Name)
			} else {
				unhold = append(unhold, c.Name)
			}
		}
	}
	for _, m := range []struct {
		verb  string
		names []string
	}{{"auto", auto}, {"manual", manual}, {"hold", hold}, {"unhold", unhold}} {
		if len(m.names) == 0 {
			continue
		}
		if err := a.again(ctx, h, append([]string{"apt-mark", m.verb, "--"}, m.names...)...); err != nil {
			return err
		}
	}
	return nil
}
