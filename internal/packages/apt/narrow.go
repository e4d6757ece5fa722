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
// compute an installation of twenty packages from one small source. So gpuadm first asks about the
// sources of the new versions alone. The answer counts where apt would choose the same with all
// sources: see choosesSame.

// simulateFew asks apt about the sources of the new versions alone. ok is false where this does not
// show what apt would do with all sources: some changes take no version from a source, or what they
// need is elsewhere, too.
func (s solver) simulateFew(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	offers map[string][]packages.Offer,
	pins []packages.Pin,
) (out string, ok bool) {
	from := sourcesOf(changes, offers)
	if len(from) == 0 {
		return "", false
	}
	files, err := sourceFiles(v, from)
	if err != nil {
		return "", false
	}
	files[pinsInScratch], err = s.patternPins(v, pins)
	if err != nil {
		return "", false
	}

	alone := []string{
		"-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=" + host.Scratch,
		"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
	}
	options := slices.Concat(alone, scratchPins())
	out, err = s.compute(ctx, v, files, options, verb(changes), arguments(v, changes, offers))
	if err != nil {
		return "", false
	}

	brought, ok := s.broughtBy(changes, parseSimulation(out))
	return out, ok && s.choosesSame(ctx, v, changes, brought, pins)
}

// broughtBy returns the new packages, with their versions, that apt would install beside the
// changes. ok is false where apt would do anything else that the changes do not say.
func (s solver) broughtBy(
	changes []converge.Change,
	moves []packages.Move,
) (brought map[string]string, ok bool) {
	versions := map[string]string{}
	for _, c := range packages.Due(changes) {
		versions[c.Name] = packages.Parse(c.After).Version
	}

	brought = map[string]string{}
	for _, move := range moves {
		version, isNamed := versions[move.Name]
		isNew := !s.d.packages[move.Name].Installed()
		switch {
		case move.Version == "":
			return nil, false
		case isNamed && move.Version == version:
		case !isNamed && isNew:
			brought[move.Name] = move.Version
		default:
			return nil, false
		}
	}

	return brought, true
}

// choosesSame reports whether apt, with all sources, would bring the same packages beside the
// changes, and no others. apt first marks what the changes name. Then it follows the dependencies,
// and where nothing meets one yet, it installs the candidate of the first alternative that has one.
// Sources: DoCacheManipulationFromCommandLine in apt-private/private-install.cc and
// MarkInstall_InstallDependencies in apt-pkg/depcache.cc.
func (s solver) choosesSame(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	brought map[string]string,
	pins []packages.Pin,
) bool {
	if len(brought) == 0 {
		return true // what the changes name meets every dependency
	}
	names := slices.Sorted(maps.Keys(brought))
	out, err := s.policy(ctx, v, pins, names)
	if err != nil || !maps.Equal(candidatesIn(out), brought) {
		return false
	}

	moved := slices.Clone(packages.Due(changes))
	for _, name := range names {
		to := packages.State{Version: brought[name]}
		moved = append(moved, converge.Change{
			Ref:    converge.Ref{Kind: "package", Name: name},
			Before: s.d.packages[name].String(),
			After:  to.String(),
		})
	}
	after, err := s.after(ctx, v, moved)
	if err != nil {
		return false
	}

	all := after.dependencies()
	for _, c := range moved {
		for clause := range all.clauses(c.Name) {
			if !all.choosesOf(brought, clause) {
				return false
			}
		}
	}

	return len(all.foreign) == 0 // relations have no architecture here
}

// choosesOf reports whether apt installs nothing for a dependency, or one of the packages that are
// brought.
func (all dependencies) choosesOf(brought map[string]string, clause string) bool {
	by := all.meeting(clause)
	if by != "" && brought[by] == "" {
		return true
	}
	first, _, _ := strings.Cut(clause, "|")
	r := relationOf(first)
	version := brought[r.name]
	return version != "" && r.allows(version)
}

// sourcesOf returns the places of the sources that have the new versions, where the changes install
// packages alone and where each new version has a source; else none.
func sourcesOf(changes []converge.Change, offers map[string][]packages.Offer) []string {
	places := map[string]bool{}
	for _, c := range packages.Due(changes) {
		before, after := packages.Parse(c.Before), packages.Parse(c.After)
		_, offered := packages.Find(offers[c.Name], after.Version)
		if before.Broken != "" || !after.Installed() || !offered {
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
