// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A solver is apt with a reading of dpkg's database for one request.
type solver struct {
	apt
	d dpkg
	// names are those of all packages that apt knows; apt is asked for them once for each request.
	names *[]string
}

func newSolver(a apt, d dpkg) solver { return solver{apt: a, d: d, names: new([]string)} }

// Resolve chooses the open versions, asks apt what else would change, and checks that the disk has
// room for all.
func (a apt) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	d, err := readDpkg(v)
	if err != nil {
		return nil, err
	}
	a.needs = &needs{}
	r, err := packages.Resolve(ctx, v, ask, d.packages, newSolver(a, d))
	if err != nil {
		return nil, err
	}
	if err := a.needs.room(v); err != nil {
		return nil, err
	}

	var unasked []string // replaced packages whose offers are not known yet
	for _, name := range r.Replaced() {
		if len(r.Offers[name]) == 0 {
			unasked = append(unasked, name)
		}
	}

	offers, err := a.Offers(ctx, v, unasked)
	if err != nil {
		return nil, err
	}
	maps.Copy(offers, r.Offers)
	r.Lost(offers, func(name, version string) bool {
		return stored(v, name, version) != "" || archive(v, aptArchives, name, version) != ""
	})
	return r.Changes, nil
}

// Available answers without dpkg's database.
func (a apt) Available() packages.Solver { return newSolver(a, dpkg{}) }

func (solver) Words() packages.Words {
	return packages.Words{
		Source:  "source",
		Refresh: "apt-get update",
		Show:    "apt-get -s",
		At:      "=",
	}
}

// Hidden is nil: apt hides nothing.
func (solver) Hidden(
	context.Context, host.View, string, string, []string, map[string][]packages.Offer,
) error {
	return nil
}

func (s solver) Without(v host.View, name string) converge.State {
	return s.d.without(v, name)
}

func (s solver) Essential(name string) bool { return s.d.details(name).essential }

// Simulate asks apt what an installation would do. It passes versions that only Store has as files.
func (s solver) Simulate(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	offers map[string][]packages.Offer,
	pins []packages.Pin,
) ([]packages.Move, error) {
	pins = raised(pins)
	if out, ok := s.simulateFew(ctx, v, changes, offers, pins); ok {
		return s.movesIn(out), nil
	}

	args := arguments(v, changes, offers)
	out, err := s.simulate(ctx, v, pins, verb(changes), args)
	if err != nil && slices.ContainsFunc(changes, lacksDependencies) {
		lost := s.lostDependencies(ctx, v, changes, pins)
		if len(lost) > 0 {
			out, err = s.simulate(ctx, v, pins, verb(changes), append(args, lost...))
		}
	}

	if err != nil {
		return nil, err
	}
	return s.movesIn(out), nil
}

// movesIn returns what apt would do, and keeps how much room it needs.
func (s solver) movesIn(out string) []packages.Move {
	if s.needs != nil {
		*s.needs = needsOf(out)
	}
	return parseSimulation(out)
}

func lacksDependencies(c converge.Change) bool {
	return packages.Parse(c.Before).Broken == packages.Incomplete
}

// lostDependencies asks apt what it would install to repair packages that lack a dependency, as
// arguments of an installation. A package that lacks one is installed for apt, and it brings the
// dependency only where it is named, or by --fix-broken without any name: apt-get(8). apt would
// also remove a package whose dependency no source has; gpuadm does not.
func (s solver) lostDependencies(
	ctx context.Context, v host.View, changes []converge.Change, pins []packages.Pin,
) (args []string) {
	out, err := s.simulate(ctx, v, pins, []string{"install", "--fix-broken"}, nil)
	if err != nil {
		return nil // the installation's own error says more
	}
	named := packages.Named(changes)
	for _, move := range parseSimulation(out) {
		if move.Version != "" && !named[move.Name] {
			args = append(args, install(move.Name, packages.State{Version: move.Version}))
		}
	}

	return args
}

// raised returns pins for one question, of which the last counts more than the pin on disk: that one
// fits newer versions of the branch too.
func raised(pins []packages.Pin) []packages.Pin {
	pins = slices.Clone(pins)
	if len(pins) > 0 {
		pins[len(pins)-1].Priority++
	}
	return pins
}

// simulate returns what apt-get says that it would do, with its lists in full.
//
// pins precede those on disk: the first record that fits a version counts (pkgPolicy::CreatePin in
// apt-pkg/policy.cc).
func (s solver) simulate(
	ctx context.Context, v host.View, pins []packages.Pin, verb, args []string,
) (string, error) {
	names, err := s.allNames(ctx, v)
	if err != nil {
		return "", err
	}
	pinText, err := s.literalPins(v, pins, names)
	if err != nil {
		return "", err
	}
	files := map[string][]byte{pinsInScratch: pinText}
	return s.compute(ctx, v, files, slices.Concat(readOnly(v), scratchPins()), verb, args)
}

// compute has apt-get say what it would do. The files are in host.Scratch meanwhile.
//
// --print-uris computes all that an installation would, and begins none. It takes half as long as
// -s, which also orders what dpkg would do; but where nothing is to be installed it would mark
// packages, so apt gets a copy of its marks. Sources: InstallPackages in
// apt-private/private-install.cc (apt 1.0 to 3.0) and OpenForInstall in
// apt-private/private-cachefile.h.
func (s solver) compute(
	ctx context.Context, v host.View, files map[string][]byte, options, verb, args []string,
) (string, error) {
	marks, err := v.ReadFile(aptExtStates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	files["marks"] = marks
	compute := []string{
		"apt-get", "--print-uris", "-V", "--allow-remove-essential",
		"-o", "Debug::NoLocking=true",
		"-o", "Dir::State::extended_states=" + host.Scratch + "/marks",
	}
	out, err := v.AskAbout(ctx, files, slices.Concat(compute, options, s.options(), verb, args)...)
	if err != nil {
		return "", explain(v, string(out), err)
	}
	return string(out), nil
}

// allNames returns the names of all packages that apt knows.
func (s solver) allNames(ctx context.Context, v host.View) ([]string, error) {
	if len(*s.names) > 0 {
		return *s.names, nil
	}
	out, err := v.Ask(ctx, slices.Concat([]string{"apt-cache"}, readOnly(v), []string{"pkgnames"})...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	*s.names = strings.Fields(string(out))
	return *s.names, nil
}

// verb returns apt-get's verb and options. For apt, a partly unpacked package already has its
// version, and apt does not touch it while it is held: apt-get(8), --reinstall.
func verb(changes []converge.Change) []string {
	if packages.Removes(changes) {
		return []string{"remove", "--"}
	}

	partlyUnpacked := func(c converge.Change) bool {
		before, after := packages.Parse(c.Before), packages.Parse(c.After)
		return before.Broken == "half-installed" && before.Version == after.Version
	}

	if slices.ContainsFunc(packages.Due(changes), partlyUnpacked) {
		return []string{"install", "--reinstall", "--"}
	}
	return []string{"install", "--"}
}

// arguments are what apt-get install takes for changes: NAME=VERSION, NAME-, or a file of Store
// where offers do not have the version.
func arguments(v host.View, changes []converge.Change, offers map[string][]packages.Offer) (list []string) {
	removes := packages.Removes(changes)
	for _, c := range packages.Due(changes) {
		if removes {
			list = append(list, c.Name)
		} else {
			list = append(list, argument(v, c, offers))
		}
	}

	return list
}

// argument is what apt-get install takes for a change.
func argument(v host.View, c converge.Change, offers map[string][]packages.Offer) string {
	to := packages.Parse(c.After)
	argument := install(c.Name, to)
	_, offered := packages.Find(offers[c.Name], to.Version)
	if to.Installed() && !offered {
		return cmp.Or(stored(v, c.Name, to.Version), argument)
	}
	return argument
}
