// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// A Resolution is the work on one request.
type Resolution struct {
	Changes   []converge.Change
	Installed map[string]State
	Offers    map[string][]Offer
	Solver    Solver

	family  *Family
	ifThere []string
	chosen  choice // of the family, where it is among the changes
}

// Begin chooses the open versions, and checks that all versions are available.
func Begin(
	ctx context.Context,
	v host.View,
	ask Request,
	installed map[string]State,
	by Solver,
) (*Resolution, error) {
	r := &Resolution{
		Changes:   slices.Clone(ask.Changes),
		Installed: installed,
		Solver:    by,
		family:    ask.Family,
		ifThere:   ask.IfThere,
	}
	var err error
	r.Offers, err = by.Offers(ctx, v, ask.names(installed))
	if err != nil {
		return nil, err
	}
	if err := r.closeGroups(ctx, v, ask.Versions); err != nil {
		return nil, err
	}

	if r.family != nil && r.chosen.own == "" {
		r.chosen.own = ask.Versions[r.family.Group]
	}
	r.Changes = r.family.addParts(r.Changes, installed, r.Offers, r.chosen)
	for i, c := range r.Changes {
		if Parse(c.After).Version == removed {
			r.Changes[i].After = by.Without(v, c.Name)
		}
	}

	return r, r.Check(ctx, v)
}

// Resolve chooses the open versions, asks the packager what else would change, and adds those
// changes.
func Resolve(
	ctx context.Context,
	v host.View,
	ask Request,
	installed map[string]State,
	by Solver,
) (*Resolution, error) {
	r, err := Begin(ctx, v, ask, installed, by)
	if err == nil {
		err = r.addDependencies(ctx, v)
	}
	if err == nil {
		r.dropUnneeded(ctx, v, ask.Brought)
	}
	return r, err
}

// closeGroups chooses the versions of groups. versions has, by group, the version of members that
// are not among the changes.
func (r *Resolution) closeGroups(ctx context.Context, v host.View, versions map[string]string) error {
	groups := map[string][]int{} // indices of changes, by GROUP=PATTERN
	for i, c := range r.Changes {
		after := Parse(c.After)
		if _, _, isOpen := after.open(); isOpen {
			groups[after.Version] = append(groups[after.Version], i)
		}
	}

	for _, open := range familyFirst(groups, r.family) {
		group, pattern, _ := strings.Cut(open, "=")
		if err := r.closeGroup(ctx, v, group, pattern, versions[group], groups[open]); err != nil {
			return err
		}
	}

	return nil
}

// closeGroup chooses the version of one group, whose members are the changes with these indices. If
// preferred is not "", it is the version of the group's other members.
func (r *Resolution) closeGroup(
	ctx context.Context,
	v host.View,
	group, pattern, preferred string,
	indices []int,
) error {
	var members []string
	for _, i := range indices {
		members = append(members, r.Changes[i].Name)
	}
	first := members[0]

	chosen, site, ok := choose(members, cmp.Or(preferred, pattern), r.Offers, r.Solver.Compare)
	if !ok { // the other members get another version, too: see addParts
		chosen, site, ok = choose(members, pattern, r.Offers, r.Solver.Compare)
	}
	if !ok {
		required := func(member string) bool { return !slices.Contains(r.ifThere, member) }
		if slices.ContainsFunc(members, required) {
			return r.missing(ctx, v, group, pattern, members)
		}
		for _, i := range indices {
			r.Changes[i].After = r.Changes[i].Before
		}
		return nil
	}

	if r.family != nil && r.family.Group == group {
		r.chosen = choice{Own(chosen[first]), site}
	}
	version := r.family.versionFor(first, r.chosen, r.Offers[first])
	if pattern == "*" && version != "" {
		chosen[first] = version
	}

	for _, i := range indices {
		c := &r.Changes[i]
		version := chosen[c.Name]
		after := Parse(c.After)
		after.Version = version
		c.After = after.String()
		c.Why += olderMember(c.Name, version, members, pattern, r.Offers, r.Solver.Compare)
	}

	return nil
}

// addDependencies asks the packager what else would change, adds those changes, and refuses a
// transaction that would do harm.
func (r *Resolution) addDependencies(ctx context.Context, v host.View) error {
	moves, err := r.simulate(ctx, v)
	if err != nil {
		return err
	}

	sorting.By(moves, func(a, b Move) int { return cmp.Compare(a.Name, b.Name) })
	asked := Named(r.Changes)
	for _, move := range moves {
		if asked[move.Name] {
			continue
		}
		if because := r.harm(move); because != "" {
			return r.refused(move.Name, because)
		}
		r.Changes = append(r.Changes, r.dependency(v, move))
	}

	if because := r.Difference(moves); because != "" {
		return r.refused(Due(r.Changes)[0].Name, because)
	}
	if err := r.family.refuseMixed(r.Changes, r.chosen); err != nil {
		return err
	}
	r.family.holdAll(r.Changes)
	return nil
}

// harm says why gpuadm refuses what the packager would do to a package that the spec does not ask
// for; "" if it does not.
func (r *Resolution) harm(move Move) string {
	if move.Version != "" {
		return ""
	}

	tool := r.Solver.Name()
	found := r.Installed[move.Name]
	switch {
	case r.Solver.Essential(move.Name):
		return tool + " would remove it, and this machine cannot work without it"
	case r.family != nil && !found.Auto && !r.family.Has(move.Name, found.Version):
		const because = "%s would remove %s %s, which depends on what would change and is not part of the driver"
		return fmt.Sprintf(because, tool, move.Name, found.Version)
	}

	return ""
}

// dependency returns the change for a package that the packager would also install or remove.
func (r *Resolution) dependency(v host.View, move Move) converge.Change {
	found := r.Installed[move.Name]
	if move.Version == "" {
		c := dependencyChange(move.Name, found, State{}, whyRemoved)
		c.After = r.Solver.Without(v, move.Name)
		return c
	}

	to := State{
		Version: move.Version,
		Held:    found.Held,
		Auto:    found.Auto || !found.Installed(),
	}
	return dependencyChange(move.Name, found, to, whyDependency)
}

const (
	whyDependency = "dependency"
	whyRemoved    = "cannot stay beside what is installed"
)

// simulate asks the packager for what it would do. If a dependency allows several versions of a
// part of the family, the packager may take the newest: simulate then names that part in the chosen
// version, and asks again.
func (r *Resolution) simulate(ctx context.Context, v host.View) ([]Move, error) {
	decided := false
	for len(Due(r.Changes)) > 0 {
		moves, lost, err := r.ask(ctx, v, r.Changes)
		if (err != nil || lost) && !decided {
			decided = true
			if r.decide(ctx, v) {
				continue
			}
		}

		var more bool
		if err != nil {
			r.Changes, more = r.family.addRevisions(r.Changes, r.Installed, r.Offers, r.chosen)
			if !more {
				return nil, err
			}
			continue
		}

		more, err = r.correct(ctx, v, moves)
		if err != nil {
			return nil, err
		}
		if !more {
			return moves, nil // refuseMixed refuses parts that are still wrong
		}
	}

	return nil, nil
}

// correct adds changes to the chosen version for parts of the family that the packager would
// install in another. more reports whether there was any.
func (r *Resolution) correct(ctx context.Context, v host.View, moves []Move) (more bool, err error) {
	asked := Named(r.Changes)
	var wrong []string
	for _, move := range moves {
		if move.Version != "" && !asked[move.Name] && r.isWrongPart(move) {
			wrong = append(wrong, move.Name)
		}
	}

	offers, err := r.Solver.Offers(ctx, v, wrong)
	if err != nil {
		return false, err
	}

	for _, name := range wrong {
		r.Offers[name] = offers[name]
		found := r.Installed[name]
		to, _ := r.family.stateFor(found, r.chosen, offers[name])
		if to.Installed() {
			more = true
			to.Auto = found.Auto || !found.Installed()
			r.Changes = append(r.Changes, dependencyChange(name, found, to, "part of the driver"))
		}
	}

	return more, nil
}

// isWrongPart reports whether a move installs a part of the family in another than the chosen
// version.
func (r *Resolution) isWrongPart(move Move) bool {
	return r.chosen.own != "" && r.family.Has(move.Name, move.Version) && Own(move.Version) != r.chosen.own
}

// ask has the packager simulate changes. lost reports that it would remove an extra which no change
// names and which the chosen source has.
func (r *Resolution) ask(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
) (moves []Move, lost bool, err error) {
	moves, err = r.Solver.Simulate(ctx, v, changes, r.Offers, r.pins())

	named := Named(changes)
	for _, move := range moves {
		if move.Version != "" || named[move.Name] || !r.family.extra(move.Name) {
			continue
		}
		lost = lost || r.family.versionFor(move.Name, r.chosen, r.Offers[move.Name]) != ""
	}

	return moves, lost, err
}

// pins keep the family at the version that was chosen. One asked for as 580.* is exact only now,
// and the pins on disk cannot have it.
func (r *Resolution) pins() []Pin {
	if r.family == nil || r.chosen.own == "" {
		return nil
	}
	return r.family.Pins(r.chosen.own)
}

// decide leaves it to the packager which parts of the family stay: dependencies in another version,
// and parts that the spec no longer asks for. A dependency of the driver's other flavour conflicts
// with the parts asked for. And a part that was asked for by name may also be a dependency:
// nvidia-persistenced is a dependency of nvidia-compute-utils in branches 580 and 570
// (test/listings). decide returns false if there are no such parts, or if the packager finds no
// solution without them either.
func (r *Resolution) decide(ctx context.Context, v host.View) bool {
	var dependencies, unasked, others []converge.Change
	for _, c := range r.Changes {
		switch {
		case !r.family.mayStay(c, r.chosen, r.Offers[c.Name]):
			others = append(others, c)
		case Parse(c.After).Installed():
			dependencies = append(dependencies, c)
		default:
			unasked = append(unasked, c)
		}
	}

	if len(others) == len(r.Changes) {
		return false
	}
	moves, _, err := r.ask(ctx, v, others)
	if err != nil {
		return false
	}

	askWith := func(c converge.Change) (lost bool, err error) {
		_, lost, err = r.ask(ctx, v, append(slices.Clip(others), c))
		return lost, err
	}

	for _, c := range dependencies {
		if slices.Contains(moves, Move{Name: c.Name}) {
			if _, err := askWith(r.stays(c)); err != nil {
				c.After = r.Solver.Without(v, c.Name)
				c.Why = whyRemoved
			}
		}

		others = append(others, c)
	}

	for _, c := range unasked { // last, since they may depend on the dependencies
		if lost, err := askWith(c); lost || err != nil {
			c = r.stays(c)
		}
		others = append(others, c)
	}

	r.Changes = others
	return true
}

// stays returns the change of a part that stays as a dependency in the chosen version.
func (r *Resolution) stays(c converge.Change) converge.Change {
	to, _ := r.family.stateFor(Parse(c.Before), r.chosen, r.Offers[c.Name])
	to.Held = true
	to.Auto = true

	c.After = to.String()
	c.Dependency = true
	c.Why = whyDependency
	return c
}
