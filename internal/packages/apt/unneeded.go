// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Unneeded asks apt what its autoremove would take once the changes are made, if nothing were held.
// What the changes name counts as asked for, also where they only change its marks; candidates do
// not.
//
// apt computes the whole installation a second time for this answer. Where dpkg's database shows
// that each candidate is needed, apt is not asked: so it is with most upgrades.
func (s solver) Unneeded(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	candidates map[string]bool,
	offers map[string][]packages.Offer,
	pins []packages.Pin,
) ([]string, error) {
	if s.allNeeded(ctx, v, changes, candidates) {
		return nil, nil
	}
	return s.leftOver(ctx, v, changes, candidates, offers, pins)
}

// leftOver asks apt.
func (s solver) leftOver(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	candidates map[string]bool,
	offers map[string][]packages.Offer,
	pins []packages.Pin,
) ([]string, error) {
	var args []string
	for _, c := range changes {
		isThere := packages.Parse(c.Before).Installed() || packages.Parse(c.After).Installed()
		if isThere && !candidates[c.Name] {
			args = append(args, argument(v, c, offers))
		}
	}

	verb := []string{"install", "-o", "APT::Get::HideAutoRemove=false", "--"}
	out, err := s.simulate(ctx, v, raised(pins), verb, args)
	if err != nil {
		return nil, err
	}
	return parseUnneeded(out), nil
}

// allNeeded reports whether each candidate is needed once the changes are made: whether
// dependencies lead to it from a package that is asked for. apt follows all of these dependencies,
// and some more, such as Recommends: so apt removes nothing where allNeeded is true. Source:
// pkgDepCache::MarkRequired and MarkPackage in apt-pkg/depcache.cc.
func (s solver) allNeeded(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	candidates map[string]bool,
) bool {
	after, err := s.after(ctx, v, changes)
	if err != nil {
		return false // the question to apt says what is wrong
	}

	named := packages.Named(changes)
	var asked []string
	for name, state := range after.packages {
		before := s.d.packages[name]
		isManual := before.Installed() && !before.Auto
		isNamed := named[name] && !candidates[name]
		if state.Installed() && (isManual || isNamed) {
			asked = append(asked, name)
		}
	}

	needed := after.dependencies().surelyNeeded(asked)
	for name := range candidates {
		if !needed[name] {
			return false
		}
	}

	return true
}

// surelyNeeded returns what packages need, directly or not. It follows a dependency only where one
// package alone meets it: of several, apt keeps those that were built from different sources.
func (all dependencies) surelyNeeded(asked []string) map[string]bool {
	needed := map[string]bool{}
	visit := slices.Clone(asked)
	for len(visit) > 0 {
		name := visit[len(visit)-1]
		visit = visit[:len(visit)-1]
		if needed[name] {
			continue
		}

		needed[name] = true
		for clause := range all.clauses(name) {
			if met := all.allMeeting(clause); len(met) == 1 {
				visit = append(visit, met...)
			}
		}
	}

	return needed
}

// allMeeting returns the packages that meet a dependency, which may have alternatives.
func (all dependencies) allMeeting(clause string) []string {
	met := map[string]bool{}
	for alternative := range strings.SplitSeq(clause, "|") {
		r := relationOf(alternative)
		for _, name := range append([]string{r.name}, all.foreign[r.name]...) {
			state := all.d.packages[name]
			if state.Installed() && r.allows(state.Version) {
				met[name] = true
			}
		}
		for _, p := range all.provided[r.name] {
			met[p.by] = true
		}
	}

	return slices.Collect(maps.Keys(met))
}

// after returns dpkg's database as the changes will leave it. apt says what the new versions depend
// on.
func (s solver) after(ctx context.Context, v host.View, changes []converge.Change) (dpkg, error) {
	after := dpkg{
		packages:   maps.Clone(s.d.packages),
		paragraphs: maps.Clone(s.d.paragraphs),
		native:     s.d.native,
	}
	versions := map[string]string{} // that are new
	var arguments []string
	for _, c := range changes {
		state := packages.Parse(c.After)
		after.packages[c.Name] = state
		if state.Installed() && state.Version != packages.Parse(c.Before).Version {
			versions[c.Name] = state.Version
			arguments = append(arguments, install(c.Name, state))
		}
	}

	if len(versions) == 0 {
		return after, nil
	}

	argv := slices.Concat([]string{"apt-cache"}, readOnly(v), unpinned(), []string{"show", "--"}, arguments)
	out, err := v.Ask(ctx, argv...)
	if err != nil {
		return after, explain(v, string(out), err)
	}
	for e := range entries(out) {
		name := string(after.key(e.name, e.arch))
		if versions[name] == string(e.version) {
			after.paragraphs[name] = e.text
			delete(versions, name)
		}
	}

	if len(versions) > 0 { // apt-cache exits with 0 for a version that it does not know
		return after, fmt.Errorf("apt-cache shows nothing of %s", strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
	}
	return after, nil
}

// sayIdle begins apt's list of packages that nothing needs.
var sayIdle = pattern.Of(`^The following packages? (?:was|were) automatically installed and (?:is|are) no longer required:$`)

// parseUnneeded returns what apt says that nothing needs: ShowList and DoAutomaticRemove in
// apt-private/private-install.cc.
func parseUnneeded(out string) (names []string) {
	inList := false
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "   ") {
			inList = sayIdle().MatchString(line)
			continue
		}
		if m := sayMove().FindStringSubmatch(line); inList && m != nil {
			names = append(names, m[1])
		}
	}

	return names
}
