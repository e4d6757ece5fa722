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

// Transact makes the changes in one apt-get install, which touches nothing if it would do anything
// but these changes: see Verify.
func (a apt) Transact(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := a.merged(ctx, h)
	if err != nil {
		return err
	}

	now := packages.WithBefore(d.packages, changes)
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
	d, err = readDpkg(h)
	if err != nil {
		return err
	}
	return packages.Verify("apt", "/var/log/apt/term.log", changes, d.packages)
}

// merged reads dpkg's database. apt refuses all work until dpkg has merged the updates that an
// interrupted run left. dpkg --set-selections without input does only that: dpkg --configure -a
// would run the scripts of packages that are about to be replaced.
func (a apt) merged(ctx context.Context, h host.Host) (dpkg, error) {
	d, err := readDpkg(h)
	if err != nil || !d.interrupted {
		return d, err
	}
	if err := a.again(ctx, h, "dpkg", "--set-selections"); err != nil {
		return d, err
	}
	return readDpkg(h)
}

// move installs and removes.
func (a apt) move(ctx context.Context, h host.Host, d dpkg, changes []converge.Change) error {
	aptGet, err := a.hooked(changes)
	if err != nil {
		return err
	}
	install := func(args ...[]string) error {
		argv := slices.Concat(aptGet, slices.Concat(args...))
		return a.again(ctx, h, packages.Quiet(h, argv...)...)
	}

	changes, err = a.removeHalf(ctx, h, d, changes)
	if err != nil || len(packages.Due(changes)) == 0 {
		return err
	}
	if packages.Removes(changes) {
		return install(verb(changes), arguments(h, changes, nil))
	}

	var inStore []string // a source may have their files, too, and goes before the stored one
	for _, c := range packages.Due(changes) {
		after := packages.Parse(c.After)
		if after.Installed() && stored(h, c.Name, after.Version) != "" {
			inStore = append(inStore, c.Name)
		}
	}

	offers, err := a.Offers(ctx, h, inStore)
	if err != nil {
		return err
	}
	r := packages.Resolution{
		Changes:   changes,
		Installed: d.packages,
		Solver:    newSolver(a, d),
	}
	if err := r.Unkept(ctx, h, a.Keep(ctx, h, r.Replaced())); err != nil {
		return err
	}

	err = install(verb(changes), arguments(h, changes, offers))
	if fetchFailed(err) && packages.InStore(h, a, changes) {
		// No source has the versions any more, but Store has. apt reads as its user _apt, which may
		// not enter that folder.
		asRoot := []string{"-o", "APT::Sandbox::User=root"}
		err = install(asRoot, verb(changes), arguments(h, changes, nil))
	}

	return err
}

// removeHalf has dpkg remove the packages that are to go and that a killed dpkg has half unpacked,
// and returns the other changes. While no source has the archive of such a package, apt refuses all
// work: "needs to be reinstalled, but I can't find an archive for it" (apt 2.6.1, in this package's
// tests). Once it is gone, apt may not know its name any more. What depends on it goes in apt's
// transaction that follows.
// Source: dpkg(1), --force-remove-reinstreq and --force-depends.
func (a apt) removeHalf(
	ctx context.Context, h host.Host, d dpkg, changes []converge.Change,
) (rest []converge.Change, err error) {
	var half []string
	for _, c := range packages.Due(changes) {
		goes := !packages.Parse(c.After).Installed()
		if goes && d.packages[c.Name].Broken == "half-installed" {
			half = append(half, c.Name)
		}
	}

	if len(half) == 0 {
		return changes, nil
	}

	isHalf := func(c converge.Change) bool { return slices.Contains(half, c.Name) }
	rest = slices.DeleteFunc(slices.Clone(changes), isHalf)
	dpkg := []string{"dpkg", "--remove", "--force-remove-reinstreq", "--force-depends", "--"}
	err = a.again(ctx, h, packages.Quiet(h, append(dpkg, half...)...)...)
	if err != nil {
		return rest, err
	}
	return rest, sweepUnpacked(ctx, h)
}

func fetchFailed(err error) bool {
	var failed *host.CommandError
	return errors.As(err, &failed) && strings.Contains(failed.Stderr, "Failed to fetch")
}

// purge removes the leftovers of packages that were not installed before gpuadm.
func (a apt) purge(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	var names []string
	for _, c := range changes {
		after := packages.Parse(c.After)
		wantsNothing := !after.Installed() && after.Broken == ""
		if wantsNothing && d.packages[c.Name].Broken == packages.ConfigFiles {
			names = append(names, c.Name)
		}
	}

	if len(names) == 0 {
		return nil
	}
	argv := slices.Concat([]string{"apt-get"}, a.options(), []string{"purge", "--"}, names)
	return a.again(ctx, h, packages.Quiet(h, argv...)...)
}

// markReached marks the packages that are converged after a transaction that failed for others: in
// a rollback one script that still fails must not cost all others their holds.
func (a apt) markReached(ctx context.Context, h host.Host, failed error, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	isLocked := errors.As(failed, new(*packages.Locked))
	if d.interrupted || isLocked || ctx.Err() != nil {
		return nil
	}

	var reached []converge.Change
	for _, c := range changes {
		found := d.packages[c.Name]
		after := packages.Parse(c.After)
		if after.Installed() && found.Version == after.Version && found.Broken == "" {
			reached = append(reached, c)
		}
	}

	return a.mark(ctx, h, reached)
}

// mark sets and clears holds and automatic marks.
func (a apt) mark(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}

	var auto, manual, hold, unhold []string
	for _, c := range changes {
		found := d.packages[c.Name]
		after := packages.Parse(c.After)
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

	for _, marks := range []struct {
		verb  string
		names []string
	}{
		{"auto", auto},
		{"manual", manual},
		{"hold", hold},
		{"unhold", unhold},
	} {
		if len(marks.names) == 0 {
			continue
		}
		// dpkg knows them all: apt need not read any source.
		aptMark := []string{
			"apt-mark",
			"-o", "Dir::Etc::SourceList=/dev/null", "-o", "Dir::Etc::SourceParts=/dev/null",
			"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
			marks.verb, "--",
		}
		if err := a.again(ctx, h, append(aptMark, marks.names...)...); err != nil {
			return err
		}
	}

	return nil
}
