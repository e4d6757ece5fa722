// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// transact makes the changes in one apt-get install. It asks apt first what that would do, and touches nothing if it
// is anything else than what the changes say.
func (a apt) Transact(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	if d.interrupted {
		// apt refuses all work until dpkg has taken over what it left. Asked to set nothing, dpkg does that and no more:
		// configuring all that is left would run the scripts of what is about to be replaced.
		if err := a.again(ctx, h, func(time.Duration) ([]byte, error) { return h.Do(ctx, "dpkg", "--set-selections") }); err != nil {
			return err
		}
		if d, err = readDpkg(h); err != nil {
			return err
		}
	}
	now := asTheyStand(d, changes)
	if work := packages.Due(now); len(work) > 0 {
		if err := a.move(ctx, h, d, work, now); err != nil {
			if failed := a.markReached(ctx, h, err, now); failed != nil {
				err = host.Join(err, failed)
			}
			return err
		}
	}
	if err := a.purge(ctx, h, now); err != nil {
		return err
	}
	if err := a.mark(ctx, h, now); err != nil {
		return err
	}
	return proven(h, changes)
}

// asTheyStand returns the changes from how things stand now: on the way back from a failure that is not what was planned.
func asTheyStand(d dpkg, changes []converge.Change) []converge.Change {
	now := slices.Clone(changes)
	for i, c := range now {
		now[i].Before = d.packages[c.Name].State.String()
	}
	return now
}

// move installs and removes.
func (a apt) move(ctx context.Context, h host.Host, d dpkg, work, all []converge.Change) error {
	return packages.OnceMore(ctx, func() error { return a.moveBy(ctx, h, d, work, all) }, func() error { return a.refresh(ctx, h) })
}

// moveBy goes by the lists as they are.
func (a apt) moveBy(ctx context.Context, h host.Host, d dpkg, work, all []converge.Change) error {
	var names []string
	for _, c := range work {
		names = append(names, c.Name)
	}
	offers, err := a.offers(ctx, h, names)
	if err != nil {
		return err
	}
	r := resolution{apt: a, d: d, offers: offers, changes: work}
	if err := r.check(h); err != nil {
		return err
	}
	what := r.what(h)
	moves, err := a.simulate(ctx, h, d.native, what, nil)
	if err != nil {
		return err
	}
	if err := exactly(moves, all, d); err != nil {
		return err
	}
	files, back := r.files(h)
	if err := a.keep(ctx, h, d, work); err != nil {
		return err
	}
	return a.install(ctx, h, what, files, back)
}

// install has apt do it, from the files of our own folder where no source has the versions any more.
func (a apt) install(ctx context.Context, h host.Host, what, files []string, back bool) error {
	err := a.get(ctx, h, append([]string{"install", "--"}, what...)...)
	if failed := (*host.CommandError)(nil); back && errors.As(err, &failed) && strings.Contains(failed.Stderr, "Failed to fetch") {
		// apt reads as its user _apt, who may not enter our folder.
		return a.get(ctx, h, append([]string{"-o", "APT::Sandbox::User=root", "install", "--"}, files...)...)
	}
	return err
}

// exactly refuses a simulation that would do anything else than the changes say.
func exactly(moves []move, changes []converge.Change, d dpkg) error {
	for _, m := range moves {
		i := slices.IndexFunc(changes, func(c converge.Change) bool { return c.Name == m.name })
		var because string
		switch {
		case i < 0 && m.version == "":
			because = fmt.Sprintf("apt would remove %s %s, which depends on what would change", m.name, d.packages[m.name].Version)
		case i < 0:
			because = fmt.Sprintf("apt would install %s %s beside it", m.name, m.version)
		case m.version == "" && d.packages[m.name].essential:
			because = fmt.Sprintf("apt would remove %s, and this machine cannot do without it", m.name)
		case (m.version == "") == packages.Parse(changes[i].After).Installed(), m.version != "" && m.version != packages.Parse(changes[i].After).Version:
			because = fmt.Sprintf("apt would make %s %q instead of %q", m.name, m.version, changes[i].After)
		default:
			continue
		}
		return &converge.Trouble{
			What:    "cannot change packages: apt would do something else than was planned",
			Because: []string{because, "nothing was touched"},
			Try:     []string{"run the same command again, if somebody else has just installed packages", "apt-get check"},
		}
	}
	return nil
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

// markReached marks those packages that stand as they should after a transaction that failed for others: on the way back
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
		if err := a.again(ctx, h, func(within time.Duration) ([]byte, error) {
			return h.Do(ctx, slices.Concat([]string{"apt-mark"}, lockTimeout(within), []string{m.verb, "--"}, m.names)...)
		}); err != nil {
			return err
		}
	}
	return nil
}

// proven reads the database again and makes sure that every change holds: apt's exit code alone proves nothing.
func proven(v host.View, changes []converge.Change) error {
	d, err := readDpkg(v)
	if err != nil {
		return err
	}
	var because []string
	for _, c := range changes {
		if now := d.packages[c.Name].State.String(); now != c.After {
			because = append(because, fmt.Sprintf("%s is %q and should be %q", c.Name, now, c.After))
		}
	}
	if len(because) == 0 {
		return nil
	}
	return &converge.Trouble{
		What:    "cannot make packages stand as planned: apt said that it was done, and dpkg's database says otherwise",
		Because: because,
		Try:     []string{"/var/log/apt/history.log and term.log, which say what was done"},
	}
}
