// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Beside a distribution's own lists, which have 60,000 packages, apt takes a third of a second to
// compute an upgrade of twenty packages from one small source. So gpuadm first asks about the
// sources of the new versions alone. The answer counts where it is the upgrade as it was asked for,
// and nothing else: then all dependencies are met, and apt would change no more with all sources.

// simulateUpgrade asks apt about the sources of the new versions alone. ok is false where this
// answers nothing: the changes are no upgrade, or it needs more than they name.
func (s solver) simulateUpgrade(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	offers map[string][]packages.Offer,
) (out string, ok bool) {
	from := sourcesOf(changes, offers)
	if len(from) == 0 {
		return "", false
	}
	files, err := sourceFiles(v, from)
	if err != nil {
		return "", false
	}

	alone := []string{
		"-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=" + host.Scratch,
		"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
	}
	options := slices.Concat(alone, unpinned())
	out, err = s.compute(ctx, v, files, options, verb(changes), arguments(v, changes, offers))
	if err != nil {
		return "", false
	}

	versions := map[string]string{}
	for _, c := range packages.Due(changes) {
		versions[c.Name] = packages.Parse(c.After).Version
	}
	for _, move := range parseSimulation(out) {
		if move.Version == "" || move.Version != versions[move.Name] {
			return "", false
		}
	}
	return out, true
}

// sourcesOf returns the places of the sources that have the new versions, where the changes replace
// installed packages alone and where each new version has a source; else none.
func sourcesOf(changes []converge.Change, offers map[string][]packages.Offer) []string {
	places := map[string]bool{}
	for _, c := range packages.Due(changes) {
		before, after := packages.Parse(c.Before), packages.Parse(c.After)
		_, offered := packages.Find(offers[c.Name], after.Version)
		if !before.Installed() || before.Broken != "" || !after.Installed() || !offered {
			return nil
		}

		// Two sources may have one version with other dependencies: apt takes the source that it
		// reads first.
		for _, offer := range offers[c.Name] {
			if offer.Version != after.Version {
				continue
			}
			for _, source := range offer.From {
				uri, _, _ := strings.Cut(source, " ")
				places[place(uri)] = true
			}
		}
	}

	return slices.Sorted(maps.Keys(places))
}

// sourceFiles returns the files that have these sources, under names for one folder.
func sourceFiles(v host.View, places []string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, source := range allSources(v) {
		name := strings.ReplaceAll(source.file, "/", "_")
		if !slices.Contains(places, place(source.uri)) || files[name] != nil {
			continue
		}
		data, err := v.ReadFile(source.file)
		if err != nil {
			return nil, err
		}
		files[name] = data
	}

	return files, nil
}

// place is what two forms of a source's URI have in common: apt prints file:/srv for file:///srv,
// and no password.
func place(uri string) string { return withSlash(withoutUser(withoutScheme(uri))) }
