// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
		if d, err = readRPM(ctx, h); err != nil {
			return err
		}
	}
	l, err := d.locks.as(d, now)
	if err == nil {
		err = l.write(h)
	}
	if err == nil {
		d, err = readRPM(ctx, h)
	}
	return cmp.Or(err, packages.Verify("dnf", changes, d.packages))
}

// move installs and removes packages after a simulation has shown the same changes. A version that
// a stream hides belongs to a rollback from another stream.
func (a dnf) move(ctx context.Context, h host.Host, d rpmDatabase, changes []converge.Change) error {
	names := slices.Collect(maps.Keys(packages.Named(packages.Due(changes))))
	if s := (solver{a, d}); packages.Removes(changes) {
		r := packages.Resolution{Changes: changes, Installed: d.packages, Solver: s}
		if err := r.Confirm(ctx, h); err != nil {
			return err
		}
		_, err := a.do(ctx, h, s.task(h, changes, nil))
		return err
	}
	offers, err := a.Offers(ctx, h, names)
	lacks := func(name string, state converge.State) bool {
		is := packages.Parse(state)
		_, seen := packages.Find(offers[name], is.Version)
		return is.Installed() && !seen
	}
	all, due := offers, packages.Due(changes)
	if err == nil && slices.ContainsFunc(due, func(c converge.Change) bool { return lacks(c.Name, c.Before) || lacks(c.Name, c.After) }) {
		all, err = a.unfiltered().Offers(ctx, h, names)
	}
	switch {
	case err != nil && packages.InStore(h, a, changes): // no list can be read; none is needed
		a = a.unfiltered()
		a.more = append(a.more, "--disablerepo=*")
	case err != nil:
		return err
	case slices.ContainsFunc(due, func(c converge.Change) bool {
		version := packages.Parse(c.After).Version
		_, there := packages.Find(all[c.Name], version)
		return lacks(c.Name, c.After) && (there || a.Stored(h, c.Name, version) != "")
	}):
		a, offers = a.unfiltered(), all
	}
	unread, s := err, solver{a, d}
	r := packages.Resolution{Changes: changes, Installed: d.packages, Offers: offers, Solver: s}
	if err := r.Check(ctx, h); err != nil {
		return err
	}
	if err := r.Confirm(ctx, h); err != nil {
		return err
	}
	if err := r.Unkept(ctx, h, cmp.Or(unread, s.fetch(ctx, h, r.Replaced(), all))); err != nil {
		return err
	}
	out, err := a.do(ctx, h, s.task(h, changes, offers))
	if err != nil {
		return err
	}
	return scriptsRan(string(out))
}

// Keep fetches installed packages to Store.
func (a dnf) Keep(ctx context.Context, h host.Host, names []string) error {
	d, err := readRPM(ctx, h)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return a.Stored(h, name, d.packages[name].Version) != "" })
	all, err := a.unfiltered().Offers(ctx, h, names)
	if err != nil {
		return err
	}
	return solver{a, d}.fetch(ctx, h, names, all)
}

// fetch downloads packages to Store, as far as a repository still has their version.
func (s solver) fetch(ctx context.Context, h host.Host, names []string, all map[string][]packages.Offer) error {
	var want []string
	for _, name := range names {
		version := s.d.packages[name].Version
		if _, ok := packages.Find(all[name], version); ok && s.Stored(h, name, version) == "" {
			want = append(want, s.d.spec(name))
		}
	}
	if len(want) == 0 {
		return nil
	}
	if err := packages.MakeStore(h); err != nil {
		return err
	}
	_, err := s.unfiltered().run(ctx, h, append([]string{"download", "--destdir", packages.Store}, want...)...)
	return err
}

// The configuration of dnf's plugin versionlock and the default place of its list:
// dnf-versionlock(8).
const (
	lockConf = "/etc/dnf/plugins/versionlock.conf"
	lockList = "/etc/dnf/plugins/versionlock.list"
	// lockPlugin is the package that brings it on RHEL and its derivatives.
	lockPlugin = "python3-dnf-plugin-versionlock"
)

// locks is the plugin's list. Each line is a pattern; dnf keeps a package that it matches at a
// version that the pattern allows.
type locks struct {
	file   string
	plugin bool // it is installed
	lines  []string
}

func readLocks(v host.View) (locks, error) {
	l := locks{file: lockList}
	conf, err := v.ReadFile(lockConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	l.plugin = err == nil
	for line := range strings.Lines(string(conf)) {
		if key, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(key) == "locklist" {
			l.file = strings.TrimSpace(value)
		}
	}
	data, err := v.ReadFile(l.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, fmt.Errorf("cannot read dnf's locks: %w", err)
	}
	if len(data) > 0 {
		l.lines = strings.SplitAfter(string(data), "\n")
	}
	return l, nil
}

// holds says whether a package is locked at its version, by a line of gpuadm or by a pattern of
// others.
func (l locks) holds(p rpmPackage) bool {
	return slices.ContainsFunc(l.lines, func(line string) bool { return locksIn(line, p) })
}

// hides says whether the plugin would hide a version: a line excludes it, or lines lock other
// versions of a package that is not installed.
// Source: VersionLock.locking in plugins/versionlock.py of dnf-plugins-core's tree.
func (d rpmDatabase) hides(name, evr string) bool {
	fits := func(line string) bool {
		return slices.ContainsFunc([]string{"noarch", nativeRPM()}, func(arch string) bool { return locksIn(line, rpmPackage{name, evr, arch}) })
	}
	barred := func(line string) bool { return strings.HasPrefix(line, "!") && fits(line[1:]) }
	other := func(line string) bool { return exactOf(line, name) && !d.packages[name].Installed() }
	return slices.ContainsFunc(d.locks.lines, barred) || slices.ContainsFunc(d.locks.lines, other) && !slices.ContainsFunc(d.locks.lines, fits)
}

// locksIn matches a line with the forms of a package's name that dnf knows: dnf(8), "Specifying
// packages".
func locksIn(line string, p rpmPackage) bool {
	pattern := strings.TrimSpace(line)
	if pattern == "" || pattern[0] == '#' || pattern[0] == '!' {
		return false
	}
	full := strings.TrimSuffix(p.full(), "."+p.arch)
	short := p.name + "-" + packages.Unepoched(p.evr)
	version, _, _ := strings.Cut(packages.Unepoched(p.evr), "-")
	for _, form := range []string{full + "." + p.arch, full, short + "." + p.arch, short, p.name + "." + p.arch, p.name, p.name + "-" + version} {
		if ok, err := path.Match(pattern, form); ok && err == nil {
			return true
		}
	}
	return false
}

// exact is the line that dnf versionlock add writes for a package.
func exact(p rpmPackage) string { return strings.TrimSuffix(p.full(), p.arch) + "*\n" }

// with returns the list with a package locked, in a line of its own at the end.
func (l locks) with(p rpmPackage) locks {
	if l.holds(p) {
		return l
	}
	l.lines = slices.Clone(l.lines)
	if n := len(l.lines); n > 0 && l.lines[n-1] == "" {
		l.lines = l.lines[:n-1]
	} else if n > 0 && !strings.HasSuffix(l.lines[n-1], "\n") {
		l.lines[n-1] += "\n"
	}
	l.lines = append(l.lines, exact(p))
	return l
}

// without returns the list with the exact locks of a package's name taken out; false if a pattern
// still locks it.
func (l locks) without(p rpmPackage) (locks, bool) {
	l.lines = slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool { return exactOf(line, p.name) })
	return l, !l.holds(p)
}

// exactOf says whether a line locks one version of the package of this name:
// NAME-EPOCH:VERSION-RELEASE.*
func exactOf(line, name string) bool {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), name+"-")
	epoch, vr, colon := strings.Cut(rest, ":")
	return ok && colon && epoch != "" && strings.Trim(epoch, "0123456789") == "" && !strings.ContainsAny(strings.TrimSuffix(vr, ".*"), "*?[")
}

// write writes the list where it has changed.
func (l locks) write(h host.Host) error {
	old, err := readLocks(h)
	if err != nil {
		return err
	}
	text := strings.Join(l.lines, "")
	if text == strings.Join(old.lines, "") {
		return nil
	}
	attr := host.Attr{Mode: 0o644}
	if i, err := h.Stat(l.file); err == nil {
		attr = i.Attr()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return h.WriteFile(l.file, []byte(text), attr)
}

// as removes the exact locks of the packages that change from the list, and adds the locks that are
// wanted.
func (l locks) as(d rpmDatabase, changes []converge.Change) (locks, error) {
	for _, c := range changes {
		after := packages.Parse(c.After)
		p, ok := d.find(c.Name)
		free := true
		switch {
		case !ok:
			l, _ = l.without(rpmPackage{name: c.Name})
		case after.Installed() && after.Held:
			l, _ = l.without(rpmPackage{name: p.name, arch: p.arch}) // locks of its other versions
			l = l.with(p)
		default:
			if l, free = l.without(p); !free {
				return l, &trouble.Error{
					What: fmt.Sprintf("cannot unlock package %s: a pattern in %s locks it", c.Name, l.file),
					Try:  []string{"take the pattern out, if it is no longer meant: dnf versionlock list"},
				}
			}
		}
	}
	return l, nil
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
