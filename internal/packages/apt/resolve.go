// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A solver is apt with dpkg's database as it was read for one request.
type solver struct {
	apt
	d dpkg
}

// Resolve closes what is open, asks apt what else would change, and whether all of it has room.
func (a apt) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	d, err := readDpkg(v)
	if err != nil {
		return nil, err
	}
	r, err := packages.Begin(ctx, v, ask, d.packages, solver{a, d})
	if err != nil {
		return nil, err
	}
	if err := r.Draw(ctx, v); err != nil {
		return nil, err
	}
	if err := a.room(ctx, v, d, r.Changes); err != nil {
		return nil, err
	}
	again, err := a.others(ctx, v, r.Replaced(), r.Offers)
	r.Lost(again, func(name, version string) bool { return stored(v, name, version)+cached(v, name, version) != "" })
	return r.Changes, err
}

// Lacks asks the sources once more.
func (a apt) Lacks(ctx context.Context, v host.View, r *packages.Resolution) error {
	r.Solver = solver{apt: a}
	again, err := a.Offers(ctx, v, r.Replaced())
	r.Lost(again, func(name, version string) bool { return stored(v, name, version) != "" })
	return err
}

func (solver) Words() packages.Words {
	return packages.Words{Source: "source", Refresh: "apt-get update", Show: "apt-get -s install", At: "="}
}

// Hidden is nil: apt hides nothing.
func (solver) Hidden(context.Context, host.View, string, string, []string, map[string][]packages.Offer) error {
	return nil
}

func (s solver) Without(v host.View, name string) converge.State { return s.d.without(v, name) }
func (s solver) Essential(name string) bool                      { return s.d.details(name).essential }

// Simulate asks apt what installing would do. Versions that only Store has it is given as files.
func (s solver) Simulate(
	ctx context.Context, v host.View, changes []converge.Change, offers map[string][]packages.Offer, pins []packages.Pin,
) ([]packages.Move, error) {
	return s.simulate(ctx, v, s.d.native, append(verb(changes), arguments(v, changes, offers)...), pins)
}

// verb is what apt-get is asked to do. A package that dpkg has unpacked in part is in its version already for apt, which leaves one that
// is held as it is: apt-get(8), --reinstall.
func verb(changes []converge.Change) []string {
	if packages.Removes(changes) {
		return []string{"remove", "--"}
	}
	if slices.ContainsFunc(packages.Due(changes), func(c converge.Change) bool {
		before, after := packages.Parse(c.Before), packages.Parse(c.After)
		return before.Broken == "half-installed" && before.Version == after.Version
	}) {
		return []string{"install", "--reinstall", "--"}
	}
	return []string{"install", "--"}
}

// arguments are what apt-get install takes for changes: NAME=VERSION, NAME- or a file.
func arguments(v host.View, changes []converge.Change, offers map[string][]packages.Offer) (list []string) {
	removes := packages.Removes(changes)
	for _, c := range packages.Due(changes) {
		to := packages.Parse(c.After)
		if removes {
			list = append(list, c.Name)
			continue
		}
		if _, ok := packages.Find(offers[c.Name], to.Version); !ok && to.Installed() {
			if file := stored(v, c.Name, to.Version); file != "" {
				list = append(list, file)
				continue
			}
		}
		list = append(list, install(c.Name, to))
	}
	return list
}

// files is the same with files of Store wherever there are any. back says that nothing else is needed: such is the way back,
// which must not depend on a repository that has moved on, or on the network.
func files(v host.View, changes []converge.Change) (list []string, back bool) {
	back = true
	for _, c := range packages.Due(changes) {
		to := packages.Parse(c.After)
		file := stored(v, c.Name, to.Version)
		switch {
		case to.Installed() && file != "":
			list = append(list, file)
			continue
		case to.Installed() && to.Version != packages.Parse(c.Before).Version:
			back = false
		}
		list = append(list, install(c.Name, to))
	}
	return list, back
}
