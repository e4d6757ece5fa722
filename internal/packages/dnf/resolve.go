// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A solver is dnf with a reading of rpm's database for one request.
type solver struct {
	dnf
	d rpmDatabase
}

// Resolve chooses the open versions, and asks dnf what else would change.
func (a dnf) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	d, err := a.readRPM(ctx, v)
	if err != nil {
		return nil, err
	}
	if err := d.locks.refuseOff(ask.Changes); err != nil {
		return nil, err
	}
	ask.Changes = d.withPlugin(ask.Changes)
	if err := a.requireStream(ctx, v, ask, d); err != nil {
		return nil, err
	}
	r, err := packages.Resolve(ctx, v, ask, d.packages, solver{a, d})
	if err != nil {
		return nil, err
	}

	// dnf keeps its own record of why a package is installed: see readRPM.
	for i, c := range r.Changes {
		after := packages.Parse(c.After)
		after.Auto = false
		r.Changes[i].After = after.String()
	}

	offers, err := a.unfiltered().Offers(ctx, v, r.Replaced())
	r.Lost(offers, func(name, version string) bool { return a.Stored(v, name, version) != "" })
	return r.Changes, err
}

// Available also sees packages that streams hide.
func (a dnf) Available() packages.Solver { return solver{dnf: a.unfiltered()} }

// withPlugin adds the package of dnf's versionlock plugin if a change wants a lock: without the
// plugin dnf ignores locks.
func (d rpmDatabase) withPlugin(changes []converge.Change) []converge.Change {
	if d.locks.plugin || d.packages[lockPlugin].Installed() || packages.Named(changes)[lockPlugin] {
		return changes
	}
	if !slices.ContainsFunc(changes, wantsLock) {
		return changes
	}
	return append(slices.Clone(changes), converge.Change{
		Ref:        converge.Ref{Kind: "package", Name: lockPlugin},
		After:      packages.State{Version: lockPlugin + "=*"}.String(),
		Dependency: true,
		Why:        "dnf keeps to locked versions by it",
	})
}

func wantsLock(c converge.Change) bool { return packages.Parse(c.After).Held }

// refuseOff refuses changes that want a lock where dnf does not load the plugin: an update would
// replace the packages in spite of the lock. An operator has turned the plugin off, and only an
// operator turns it on again.
func (l locks) refuseOff(changes []converge.Change) error {
	if l.off == "" || !slices.ContainsFunc(changes, wantsLock) {
		return nil
	}
	return &trouble.Error{
		What:    "cannot lock packages: " + l.off + " turns off dnf's plugin versionlock",
		Because: []string{"without it dnf update replaces locked packages"},
		Try:     []string{"set it to 1 there"},
	}
}

func (solver) Words() packages.Words {
	return packages.Words{
		Source:  "repository",
		Refresh: "dnf makecache --refresh",
		Show:    "dnf --assumeno",
		At:      "-",
	}
}

// Without is empty: rpm keeps no configuration but what was edited, as .rpmsave.
func (solver) Without(host.View, string) converge.State { return "" }

// Essential is false: dnf itself refuses to remove what is protected: dnf.conf(5),
// protected_packages.
func (solver) Essential(string) bool { return false }

// Hidden returns an error if module streams or excludes hide the packages, which would otherwise be
// available.
func (s solver) Hidden(
	ctx context.Context,
	v host.View,
	what, pattern string,
	members []string,
	seen map[string][]packages.Offer,
) error {
	unfiltered := solver{s.unfiltered(), s.d}
	offers, err := unfiltered.Offers(ctx, v, members)
	if err != nil {
		return err
	}
	if hidden := onlyIn(offers, seen, members, pattern); len(hidden) > 0 {
		return hiddenByStream(v, what, hidden)
	}

	offers, err = s.unexcluded().Offers(ctx, v, members)
	if err != nil {
		return err
	}
	if hidden := onlyIn(offers, seen, members, pattern); len(hidden) > 0 {
		const because = "cannot install %s: a repository has %s, and dnf's configuration excludes it"
		return excluded(v, fmt.Sprintf(because, what, strings.Join(hidden, ", ")))
	}
	return nil
}

// onlyIn returns the members that have an offer of the pattern in offers and none in seen.
func onlyIn(offers, seen map[string][]packages.Offer, members []string, pattern string) (only []string) {
	matches := func(o packages.Offer) bool { return packages.Matches(pattern, o.Version) }
	for _, member := range members {
		if slices.ContainsFunc(offers[member], matches) && !slices.ContainsFunc(seen[member], matches) {
			only = append(only, member)
		}
	}

	return only
}

func hiddenByStream(v host.View, what string, hidden []string) error {
	because := "no stream of " + driverModule + " is enabled"
	if name, err := readStream(v, driverModule); err == nil && name != "" {
		because = fmt.Sprintf("stream %s:%s is enabled, and does not have that version", driverModule, name)
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot install %s: the repository has %s, and dnf's module streams hide it", what, strings.Join(hidden, ", ")),
		Because: []string{because},
		Try: []string{
			"dnf module list nvidia-driver, which shows the streams",
			"dnf module reset nvidia-driver, then run the same command again",
		},
	}
}

func excluded(v host.View, what string) error {
	const try = "remove it from excludepkgs (or exclude) there, or add it to includepkgs, or run dnf versionlock delete, then run the same command again"
	return &trouble.Error{
		What:    what,
		Because: excludes(v),
		Try:     []string{try},
		Err:     packages.ErrExcluded,
	}
}

// excludes lists the files and sections that hide packages from dnf: dnf.conf(5), excludepkgs and
// its older name exclude, and includepkgs, which hides all others. The option by which gpuadm asks
// without them applies to all three: _setup_excludes_includes in dnf/base.py of dnf's tree.
func excludes(v host.View) (found []string) {
	locks, err := readLocks(v)
	if err == nil && len(locks.lines) > 0 {
		found = []string{locks.file + ", which dnf versionlock list shows"}
	}
	files := append([]string{dnfConf}, repoFiles(v, "")...)
	sections, _ := reposIn(v, files)
	for _, r := range sections {
		for _, key := range []string{"excludepkgs", "exclude", "includepkgs"} {
			if value := r.values[key]; value != "" {
				found = append(found, fmt.Sprintf("%s, [%s]: %s = %s", r.file, r.id, key, value))
			}
		}
	}

	return found
}
