// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// An operator's rpm --nodeps may remove what a package of the driver requires. dnf does not mind:
// it says "Nothing to do" for an installed package, whatever that lacks. rpm --verify knows:
// rpm(8), "VERIFY OPTIONS".

// unmet has what installed packages lack, by their full name: requirements as rpm writes them, such
// as "libnvidia-cfg = 3:580.65.06-1.el9".
type unmet map[string][]string

// markIncomplete marks the locked packages that lack a requirement. gpuadm locks all packages of
// the driver and the toolkit.
func (a dnf) markIncomplete(ctx context.Context, v host.View, d *rpmDatabase) error {
	var locked []string
	for _, p := range d.list {
		if d.locks.holds(p) && p.name != rpmKeyName {
			locked = append(locked, p.full())
		}
	}

	if len(locked) == 0 {
		return nil
	}

	slices.Sort(locked)
	all, err := a.unmet(ctx, v, locked)
	if err != nil {
		return err
	}

	d.lacks = map[string][]string{}
	for _, p := range d.list {
		requirements := all[p.full()]
		if len(requirements) == 0 || !d.locks.holds(p) {
			continue
		}
		for _, name := range p.keys() {
			state := d.packages[name]
			if state.Version != p.evr {
				continue
			}
			state.Broken = packages.Incomplete
			d.packages[name] = state
			d.lacks[name] = requirements
		}
	}

	return nil
}

// unmet asks rpm what packages lack, once for each change of its database: an apply that has
// nothing to do runs rpm only once.
func (a dnf) unmet(ctx context.Context, v host.View, locked []string) (unmet, error) {
	ask := func(v host.View) (unmet, error) { return askUnmet(ctx, v, locked) }
	file := databaseFile(v)
	if file == "" {
		return ask(v)
	}
	return recall.About(a.memory, v, file, strings.Join(locked, " "), ask)
}

// databaseFile returns the file of rpm's database that every change of it writes; "" if there is
// none.
func databaseFile(v host.View) string {
	for _, file := range facts.RpmFiles() {
		info, err := v.Stat(file)
		if err == nil && info.Size > 0 {
			return file
		}
	}
	return ""
}

// askUnmet has rpm check the requirements of packages, and nothing else of them. rpm fails where
// one is not met. Where it says anything else, its answer is not whole.
func askUnmet(ctx context.Context, v host.View, locked []string) (unmet, error) {
	const verify = "rpm -V --nofiles --noscripts --nodigest --nosignature --"
	out, err := v.Ask(ctx, append(strings.Fields(verify), locked...)...)
	found, others := parseUnmet(string(out))
	var failed *host.CommandError
	isAnswer := errors.As(err, &failed) && len(found) > 0 && len(others) == 0
	if err != nil && !isAnswer {
		return nil, fmt.Errorf("cannot check what installed packages require: %w", err)
	}
	return found, nil
}

// parseUnmet reads what rpm --verify says of requirements, and returns the lines that say anything
// else. Below the name of one package rpm also lists requirements of others that concern it, so the
// end of each line counts. Source: verifyDependencies in lib/verify.c of rpm's tree.
func parseUnmet(out string) (found unmet, others []string) {
	const (
		begin  = "Unsatisfied dependencies for "
		needed = " is needed by (installed) "
	)
	found = unmet{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		requirement, by, isNeeded := strings.Cut(line, needed)
		switch {
		case isNeeded:
			name := fullName(by)
			if !slices.Contains(found[name], requirement) {
				found[name] = append(found[name], requirement)
			}
		case line != "" && !strings.HasPrefix(line, begin):
			others = append(others, line)
		}
	}

	return found, others
}

// fullName writes rpm's NAME-[EPOCH:]VERSION-RELEASE.ARCH always with an epoch.
func fullName(nevra string) string {
	p, ok := rpmFile(nevra + ".rpm")
	if !ok {
		return nevra
	}
	return p.full()
}

// lostBy returns what packages lack, as arguments for dnf install. dnf installs a package for a
// requirement, as rpm writes it: dnf(8), "SPECIFYING PROVIDES". lostBy leaves out what installed
// has, which the same transaction installs in a version of its own.
func (d rpmDatabase) lostBy(names []string, installed map[string]bool) (arguments []string) {
	for _, name := range names {
		for _, requirement := range d.lacks[name] {
			required := requiredName(requirement)
			if installed[required] {
				continue
			}
			if isRich(requirement) {
				requirement = required
			}
			arguments = append(arguments, requirement)
		}
	}

	slices.Sort(arguments)
	return slices.Compact(arguments)
}

// isRich reports whether a requirement is an expression, such as "(nvidia-driver-selinux if
// selinux-policy-targeted)", which dnf does not take as an argument:
// docs/manual/boolean_dependencies.md in rpm's tree.
func isRich(requirement string) bool { return strings.HasPrefix(requirement, "(") }

// requiredName returns the name in a requirement such as "libnvidia-cfg(x86-64) >= 3:580.65.06"; of
// an expression the first.
func requiredName(requirement string) string {
	name := strings.TrimLeft(requirement, "(")
	end := strings.IndexAny(name, " ()")
	if end < 0 {
		return name
	}
	return name[:end]
}

// cannotRestore explains why dnf cannot bring back what packages lack.
func (d rpmDatabase) cannotRestore(names []string, err error) error {
	var because []string
	for _, name := range names {
		for _, requirement := range d.lacks[name] {
			const needs = "%s %s requires %s, which is not installed"
			because = append(because, fmt.Sprintf(needs, name, d.packages[name].Version, requirement))
		}
	}

	const forced = "it was removed outside gpuadm, by rpm --nodeps or the like"
	requirements := strings.Join(trouble.Few(d.lostBy(names, nil), 4), ", ")
	return &trouble.Error{
		What:    packages.Cannot + "no repository has " + requirements + ", which installed packages require",
		Because: packages.Short(append(because, forced)),
		Try: []string{
			"dnf check --dependencies, which lists what installed packages lack",
			"add a repository or mirror that has it, run dnf makecache --refresh, then the same command again",
		},
		Err: err,
	}
}
