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
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Solver answers for one packager while one request is resolved.
type Solver interface {
	Packager
	// Offers returns the versions that repositories have, newest first: see Newest.
	Offers(ctx context.Context, v host.View, names []string) (map[string][]Offer, error)
	// Compare orders versions as the packager does.
	Compare(a, b string) int
	// Hidden returns an error if repositories have the packages and the packager's settings hide
	// them; else nil.
	Hidden(ctx context.Context, v host.View, what, pattern string, members []string, seen map[string][]Offer) error
	// Simulate returns what the packager would do for changes. Where it has pins, these count
	// before those on disk.
	Simulate(ctx context.Context, v host.View, changes []converge.Change, offers map[string][]Offer, pins []Pin) ([]Move, error)
	// Without returns the state of a package after its removal.
	Without(v host.View, name string) converge.State
	// Essential says whether the machine cannot work without a package.
	Essential(name string) bool
	// Words are the packager's own.
	Words() Words
}

// Words are one packager's terms, for messages.
type Words struct {
	Source  string // source, repository
	Refresh string // the command that reads lists again
	Show    string // the command that simulates an installation
	At      string // between a package's name and version on its command line
}

// A Move is one package that a packager would change.
type Move struct {
	Name    string
	Version string // "" = removed
}

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
func Begin(ctx context.Context, v host.View, ask Request, installed map[string]State, by Solver) (*Resolution, error) {
	r := &Resolution{Changes: slices.Clone(ask.Changes), Installed: installed, Solver: by, family: ask.Family, ifThere: ask.IfThere}
	var err error
	if r.Offers, err = by.Offers(ctx, v, ask.names(installed)); err != nil {
		return nil, err
	}
	if err := r.closeGroups(ctx, v, ask.Versions); err != nil {
		return nil, err
	}
	if r.family != nil && r.chosen.own == "" {
		r.chosen.own = ask.Versions[r.family.Group]
	}
	r.Changes = r.family.with(r.Changes, installed, r.Offers, r.chosen)
	for i, c := range r.Changes {
		if Parse(c.After).Version == removed {
			r.Changes[i].After = by.Without(v, c.Name)
		}
	}
	return r, r.Check(ctx, v)
}

// Resolve chooses the open versions, asks the packager what else would change, and adds those
// changes.
func Resolve(ctx context.Context, v host.View, ask Request, installed map[string]State, by Solver) (*Resolution, error) {
	r, err := Begin(ctx, v, ask, installed, by)
	if err == nil {
		err = r.draw(ctx, v)
	}
	return r, err
}

func (r *Resolution) draw(ctx context.Context, v host.View) error {
	moves, err := r.simulate(ctx, v)
	if err != nil {
		return err
	}
	asked := Named(r.Changes)
	slices.SortStableFunc(moves, func(a, b Move) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range moves {
		found := r.Installed[m.Name]
		tool := r.Solver.Name()
		switch {
		case asked[m.Name]:
			continue
		case m.Version == "" && r.Solver.Essential(m.Name):
			return r.refused(m.Name, tool+" would remove it, and this machine cannot work without it")
		case m.Version == "" && r.family != nil && !found.Auto && !r.family.Has(m.Name, found.Version):
			const because = "%s would remove %s %s, which depends on what would change and is no part of the driver"
			return r.refused(m.Name, fmt.Sprintf(because, tool, m.Name, found.Version))
		}
		c := converge.Change{Ref: converge.Ref{Kind: "package", Name: m.Name}, Before: found.String(), Dependency: true, Why: "dependency"}
		if m.Version == "" {
			c.Why, c.After = "cannot stay beside what is installed", r.Solver.Without(v, m.Name)
		} else {
			c.After = State{Version: m.Version, Held: found.Held, Auto: found.Auto || !found.Installed()}.String()
		}
		r.Changes = append(r.Changes, c)
	}
	if because := r.Unlike(moves); because != "" {
		return r.refused(Due(r.Changes)[0].Name, because)
	}
	if err := r.family.mixed(r.Changes, r.chosen); err != nil {
		return err
	}
	r.family.hold(r.Changes)
	return nil
}

// simulate asks the packager for what it would do. If a dependency allows several versions of a
// part of the family, the packager may take the newest: simulate then names that part in the chosen
// version, and asks again.
func (r *Resolution) simulate(ctx context.Context, v host.View) ([]Move, error) {
	decided := false
	for len(Due(r.Changes)) > 0 {
		moves, lost, err := r.ask(ctx, v, r.Changes)
		if (err != nil || lost) && !decided {
			if decided = true; r.decide(ctx, v) {
				continue
			}
		}
		if err != nil {
			changes, more := r.family.revised(r.Changes, r.Installed, r.Offers, r.chosen)
			if r.Changes = changes; more {
				continue
			}
			return nil, err
		}
		asked := Named(r.Changes)
		var wrong []string
		for _, m := range moves {
			if m.Version != "" && !asked[m.Name] && r.chosen.own != "" && r.family.Has(m.Name, m.Version) && Own(m.Version) != r.chosen.own {
				wrong = append(wrong, m.Name)
			}
		}
		offers, err := r.Solver.Offers(ctx, v, wrong)
		if err != nil {
			return nil, err
		}
		more := false
		for _, name := range wrong {
			found := r.Installed[name]
			r.Offers[name] = offers[name]
			if to, _ := r.family.fit(found, r.chosen, offers[name]); to.Installed() {
				to.Auto, more = found.Auto || !found.Installed(), true
				r.Changes = append(r.Changes, converge.Change{Ref: converge.Ref{Kind: "package", Name: name}, Before: found.String(), After: to.String(), Why: "part of the driver", Dependency: true})
			}
		}
		if !more {
			return moves, nil // mixed refuses parts that are still wrong
		}
	}
	return nil, nil
}

// ask has the packager simulate changes. lost says that it would remove an extra which no change
// names and which the chosen source has.
func (r *Resolution) ask(ctx context.Context, v host.View, changes []converge.Change) (moves []Move, lost bool, err error) {
	var pins []Pin // a version asked for as 580.* is exact only now, and the pins on disk cannot have it
	if r.family != nil && r.chosen.own != "" {
		pins = r.family.Pins(r.chosen.own)
	}
	moves, err = r.Solver.Simulate(ctx, v, changes, r.Offers, pins)
	named := Named(changes)
	return moves, slices.ContainsFunc(moves, func(m Move) bool {
		return m.Version == "" && !named[m.Name] && r.family.extra(m.Name) && r.family.fitting(m.Name, r.chosen, r.Offers[m.Name]) != ""
	}), err
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
	with := func(c converge.Change) (lost bool, err error) {
		_, lost, err = r.ask(ctx, v, append(others[:len(others):len(others)], c))
		return lost, err
	}
	for _, c := range slices.Concat(dependencies, unasked) { // in this order: the latter may depend on the former
		stays := c
		to, _ := r.family.fit(Parse(c.Before), r.chosen, r.Offers[c.Name])
		to.Held, to.Auto = true, true
		stays.After, stays.Dependency, stays.Why = to.String(), true, "dependency"
		if !Parse(c.After).Installed() {
			if lost, err := with(c); lost || err != nil {
				c = stays
			}
		} else if slices.Contains(moves, Move{Name: c.Name}) {
			if _, err := with(stays); err != nil {
				c.After, c.Why = r.Solver.Without(v, c.Name), "cannot stay beside what is installed"
			}
		}
		others = append(others, c)
	}
	r.Changes = others
	return true
}

// closeGroups chooses the versions of groups.
func (r *Resolution) closeGroups(ctx context.Context, v host.View, versions map[string]string) error {
	groups := map[string][]int{} // GROUP=PATTERN
	for i, c := range r.Changes {
		after := Parse(c.After)
		if _, _, ok := after.open(); ok {
			groups[after.Version] = append(groups[after.Version], i)
		}
	}
	for _, open := range familyFirst(groups, r.family) {
		group, pattern, _ := strings.Cut(open, "=")
		var members []string
		for _, i := range groups[open] {
			members = append(members, r.Changes[i].Name)
		}
		chosen, site, ok := choose(members, cmp.Or(versions[group], pattern), r.Offers, r.Solver.Compare)
		if !ok { // the others get another version, too: see Family.with
			chosen, site, ok = choose(members, pattern, r.Offers, r.Solver.Compare)
		}
		if !ok && !slices.ContainsFunc(members, func(m string) bool { return !slices.Contains(r.ifThere, m) }) {
			for _, i := range groups[open] {
				r.Changes[i].After = r.Changes[i].Before
			}
			continue
		}
		if !ok {
			return r.missing(ctx, v, group, pattern, members)
		}
		if r.family != nil && r.family.Group == group {
			r.chosen = choice{Own(chosen[members[0]]), site}
		}
		if fits := r.family.fitting(members[0], r.chosen, r.Offers[members[0]]); pattern == "*" && fits != "" {
			chosen[members[0]] = fits
		}
		for _, i := range groups[open] {
			c := &r.Changes[i]
			after := Parse(c.After)
			after.Version = chosen[c.Name]
			c.After, c.Why = after.String(), c.Why+missed(c.Name, chosen[c.Name], members, pattern, r.Offers, r.Solver.Compare)
		}
	}
	return nil
}

// missing returns the error that no version of a group is available for all members: it lists each
// member's versions and sources.
func (r *Resolution) missing(ctx context.Context, v host.View, group, pattern string, members []string) error {
	what, words := strings.TrimSuffix(group+" "+pattern, " *"), r.Solver.Words()
	if err := r.Solver.Hidden(ctx, v, what, pattern, members, r.Offers); err != nil {
		return err
	}
	t := &trouble.Error{What: fmt.Sprintf("cannot install %s: no %s has that version of every package of it", what, words.Source)}
	t.Because = availableAll(members, words.Source, func(m string) ([]Offer, State) { return r.Offers[m], r.Installed[m] })
	var lack []string
	for _, m := range members {
		if !slices.ContainsFunc(r.Offers[m], func(o Offer) bool { return o.Priority >= 0 && Matches(pattern, o.Version) }) {
			lack = append(lack, m)
		}
	}
	if len(lack) > 0 {
		t.What = fmt.Sprintf("cannot install %s: no %s has that version of %s", what, words.Source, strings.Join(lack, ", "))
	}
	out := func(m string) bool {
		return slices.ContainsFunc(r.Offers[m], func(o Offer) bool { return o.Priority < 0 && Matches(pattern, o.Version) })
	}
	if i := slices.IndexFunc(members, out); i >= 0 {
		t.Try = append(t.Try, "apt-cache policy "+members[i]+", which shows the priority that keeps it out. The pin is in /etc/apt/preferences.d; gpuadm writes its own there for the source in [driver]")
	}
	if m := headersOf().FindStringSubmatch(group); m != nil {
		kernel := m[1]
		t.What = fmt.Sprintf("cannot build modules for kernel %s: no %s has its headers, %s", kernel, words.Source, group)
		t.Try = append(t.Try, WithoutHeaders(v, kernel))
		if with := kmod.WithHeaders(v); len(with) > 0 {
			t.Because = append(t.Because, "these kernels have headers: "+strings.Join(with, ", "))
		}
	}
	if all := common(members, r.Offers, r.Solver.Compare); len(all) > 0 {
		t.Try = append(t.Try, fmt.Sprintf("ask for a version that all have: %s", strings.Join(all[:min(len(all), 5)], ", ")))
	}
	t.Try = append(t.Try, words.Refresh+", if the repository has changed since")
	return t
}

// headersOf matches the package of a kernel's headers: Debian's and Ubuntu's, those of Fedora,
// RHEL, Amazon (kernel6.12-devel) and Oracle.
var headersOf = pattern.Of(`^(?:linux-headers|kernel[a-z0-9.-]*-devel)-(\d.*)$`)

// Removes says whether all changes are removals: those need no repository.
func Removes(changes []converge.Change) bool {
	return !slices.ContainsFunc(Due(changes), func(c converge.Change) bool { return Parse(c.After).Installed() })
}

// Check makes sure that each version asked for is available: in a repository, or as a file in
// Store.
func (r *Resolution) Check(ctx context.Context, v host.View) error {
	for _, c := range Due(r.Changes) {
		after, found, words := Parse(c.After), r.Installed[c.Name], r.Solver.Words()
		if !after.Installed() || found.Installed() && found.Version == after.Version && found.Broken != "half-installed" {
			continue
		}
		if _, ok := Find(r.Offers[c.Name], after.Version); ok || r.Solver.Stored(v, c.Name, after.Version) != "" {
			continue
		}
		if err := r.Solver.Hidden(ctx, v, c.Name+" "+after.Version, Own(after.Version), []string{c.Name}, r.Offers); err != nil {
			return err
		}
		return &trouble.Error{
			What:    fmt.Sprintf("cannot install package %s %s: no %s has that version", c.Name, after.Version, words.Source),
			Because: availableAll([]string{c.Name}, words.Source, func(string) ([]Offer, State) { return r.Offers[c.Name], found }),
			Try:     []string{"ask for a version that is available", words.Refresh + ", if the repository has changed since"},
		}
	}
	return nil
}

func (r *Resolution) refused(name, why string) error {
	var list []string
	for _, c := range Due(r.Changes) {
		if after := Parse(c.After); !c.Dependency && after.Installed() {
			list = append(list, c.Name+r.Solver.Words().At+after.Version)
		}
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot install %s: package %s prevents it", strings.Join(list, " "), name),
		Because: []string{why},
		Try:     []string{r.Solver.Words().Show + " " + strings.Join(list, " ") + ", which shows what " + r.Solver.Name() + " would do"},
	}
}
