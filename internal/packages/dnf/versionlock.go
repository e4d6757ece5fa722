// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The configuration of dnf's plugin versionlock and the default place of its list:
// dnf-versionlock(8).
const (
	lockConf = "/etc/dnf/plugins/versionlock.conf"
	lockList = "/etc/dnf/plugins/versionlock.list"
	dnfConf  = "/etc/dnf/dnf.conf"
	// lockPlugin is the package that brings it on RHEL and its derivatives.
	lockPlugin = "python3-dnf-plugin-versionlock"
)

// locks is the plugin's list. Each line is a pattern; dnf keeps a package that it matches at a
// version that the pattern allows.
type locks struct {
	file   string
	plugin bool   // it is installed
	off    string // the setting by which dnf does not load it, and its file; "": dnf does
	lines  []string
}

func readLocks(v host.View) (locks, error) {
	l := locks{file: lockList}
	conf, err := v.ReadFile(lockConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	l.plugin = err == nil
	own := mainSection(lockConf, conf)
	l.file = cmp.Or(own.values["locklist"], lockList)

	general, err := v.ReadFile(dnfConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	plugins := mainSection(dnfConf, general).values["plugins"]
	switch {
	case !own.on:
		l.off = "enabled in [main] of " + lockConf
	case plugins != "" && !isTrue(plugins):
		l.off = "plugins in [main] of " + dnfConf
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

// mainSection reads the section [main] of a configuration of dnf or of a plugin, both of which are
// enabled where the file does not say otherwise.
// Sources: dnf.conf(5), plugins; Plugins._check_enabled in dnf/plugin.py of dnf's tree.
func mainSection(file string, data []byte) repository {
	sections := parseRepos(file, data)
	i := slices.IndexFunc(sections, func(r repository) bool { return r.id == "main" })
	if i < 0 {
		return repository{on: true}
	}
	return sections[i]
}

// holds reports whether a package is locked at its version, by a line of gpuadm or by a pattern of
// others. A plugin that dnf does not load locks nothing.
func (l locks) holds(p rpmPackage) bool {
	return l.off == "" && l.lists(p)
}

// lists reports whether a line locks a package at its version, once dnf loads the plugin.
func (l locks) lists(p rpmPackage) bool {
	return slices.ContainsFunc(l.lines, func(line string) bool { return locksIn(line, p) })
}

// hides reports whether the plugin would hide a version: a line excludes it, or lines lock other
// versions of a package that is not installed.
// Source: VersionLock.locking in plugins/versionlock.py of dnf-plugins-core's tree.
func (d rpmDatabase) hides(name, evr string) bool {
	installed := d.packages[name].Installed()
	if d.locks.off != "" {
		return false
	}
	locked := false
	lockedElsewhere := false
	for _, line := range d.locks.lines {
		pattern, excludes := strings.CutPrefix(line, "!")
		matches := locksVersion(pattern, name, evr)
		switch {
		case excludes && matches:
			return true
		case matches:
			locked = true
		case !installed && exactOf(line, name):
			lockedElsewhere = true
		}
	}

	return lockedElsewhere && !locked
}

// locksVersion reports whether a line matches a version of a package that this machine can install.
func locksVersion(line, name, evr string) bool {
	return locksIn(line, rpmPackage{name, evr, "noarch"}) || locksIn(line, rpmPackage{name, evr, nativeRPM()})
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
	epochVersion, _, _ := strings.Cut(withEpoch(p.evr), "-")
	for _, form := range []string{
		full + "." + p.arch, full,
		short + "." + p.arch, short,
		p.name + "." + p.arch, p.name,
		p.name + "-" + version, p.name + "-" + epochVersion,
	} {
		ok, err := path.Match(pattern, form)
		if ok && err == nil {
			return true
		}
	}

	return false
}

// exact is the line that dnf versionlock add writes for a package.
func exact(p rpmPackage) string { return strings.TrimSuffix(p.full(), p.arch) + "*\n" }

// with returns the list with a package locked, in a line of its own at the end.
func (l locks) with(p rpmPackage) locks {
	if l.lists(p) {
		return l
	}
	l.lines = slices.Clone(l.lines)
	last := len(l.lines) - 1
	switch {
	case last < 0:
	case l.lines[last] == "":
		l.lines = l.lines[:last]
	case !strings.HasSuffix(l.lines[last], "\n"):
		l.lines[last] += "\n"
	}

	l.lines = append(l.lines, exact(p))
	return l
}

// without returns the list with the exact locks of a package's name taken out; false if a pattern
// still locks it.
func (l locks) without(p rpmPackage) (locks, bool) {
	isExact := func(line string) bool { return exactOf(line, p.name) }
	l.lines = slices.DeleteFunc(slices.Clone(l.lines), isExact)
	return l, !l.lists(p)
}

// exactOf reports whether a line locks one version of the package of this name:
// NAME-EPOCH:VERSION-RELEASE.*
func exactOf(line, name string) bool {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), name+"-")
	epoch, versionRelease, hasEpoch := strings.Cut(rest, ":")
	isNumber := epoch != "" && strings.Trim(epoch, "0123456789") == ""
	if !ok || !hasEpoch || !isNumber {
		return false
	}
	return !strings.ContainsAny(strings.TrimSuffix(versionRelease, ".*"), "*?[")
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
	info, err := h.Stat(l.file)
	switch {
	case err == nil:
		attr = info.Attr()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}

	return h.WriteFile(l.file, []byte(text), attr)
}

// locksFor returns the list without the exact locks of the packages that change, and with the locks
// that are wanted.
func (d rpmDatabase) locksFor(changes []converge.Change) (locks, error) {
	l := d.locks
	for _, c := range changes {
		after := packages.Parse(c.After)
		p, installed := d.find(c.Name)
		switch {
		case !installed:
			l, _ = l.without(rpmPackage{name: c.Name})
		case after.Installed() && after.Held:
			l, _ = l.without(rpmPackage{name: p.name, arch: p.arch}) // locks of its other versions
			l = l.with(p)
		default:
			var unlocked bool
			l, unlocked = l.without(p)
			if !unlocked {
				return l, &trouble.Error{
					What: fmt.Sprintf("cannot unlock package %s: a pattern in %s locks it", c.Name, l.file),
					Try:  []string{"take the pattern out, if it is no longer meant: dnf versionlock list"},
				}
			}
		}
	}

	return l, nil
}
