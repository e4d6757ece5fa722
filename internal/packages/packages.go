// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package packages holds the machine's packages as things: installed in exactly one version, held there, and put back
// with the version, the hold and the automatic mark that they had. It asks apt or dnf for candidates before anything
// changes, since apt's pins fail open: a pin to a version that has left the repository installs the newest, and exits 0.
package packages

import (
	"context"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A manager speaks for one packaging system. Names are the packager's; on a machine with several architectures a
// foreign one is written "name:arch" (dpkg) or "name.arch" (rpm).
type manager interface {
	// name is "apt" or "dnf".
	name() string
	// database returns the files and folders that change whenever what installed returns does.
	database() []string
	// installed returns how all packages stand, by name. It must cost little: it is asked at each converged apply.
	installed(ctx context.Context, v host.View) (map[string]State, error)
	// audit says in what order the packager's database is. It must cost little, too.
	audit(ctx context.Context, v host.View) (audit, error)
	// repair lets the packager finish once what it was interrupted in.
	repair(ctx context.Context, h host.Host) error
	// resolve closes open versions, checks that every wanted version has a candidate, and asks the packager by simulation
	// what the transaction would do. It returns one change for each package that would change: those asked for, with
	// After closed, and those drawn along (dependencies, removals) with Drawn set. Keeps is set on a change whose Before
	// cannot be had again. An error is a *converge.Trouble that names the package, what was found and where.
	resolve(ctx context.Context, v host.View, ask request) ([]converge.Change, error)
	// known returns what the lists that are there have of packages, without reading any anew, and when the youngest was read;
	// the zero time if not all of those are there that are configured. ours are files about repositories to leave out.
	known(ctx context.Context, v host.View, names, ours []string) (map[string][]offer, time.Time, error)
	// transact makes the changes, all drawn ones included, in one transaction, then sets holds and marks. What is
	// installed now and would be replaced is fetched to our own folder first, for the way back.
	transact(ctx context.Context, h host.Host, changes []converge.Change) error
}

// A request is what resolve works out.
type request struct {
	changes []converge.Change
	stands  map[string]string // by group: the own version of its members that are not among the changes
	family  *Family           // nil where the set has none
}

// An audit says in what order a packager's database is.
type audit struct {
	interrupted bool              // the packager was killed, or the power was cut, in its midst
	broken      map[string]string // packages that are not wholly installed, and the packager's word for it
}

// Store is the folder that what gets replaced is fetched to.
const Store = converge.Home + "/packages"

// Detect says which packaging system the machine has: "apt", "dnf", or "" for none that is known.
// Either tool may be installed on the other's system; then its database is empty.
func Detect(v host.View) string {
	if i, err := v.Stat(dpkgStatus); err == nil && i.Size > 0 {
		return "apt"
	}
	// Fedora and RHEL 10 keep the database below /usr; /var/lib/rpm is a link to it, or the place itself.
	for _, dir := range []string{"/usr/lib/sysimage/rpm", "/var/lib/rpm"} {
		for _, file := range []string{"rpmdb.sqlite", "Packages.db", "Packages"} {
			if i, err := v.Stat(dir + "/" + file); err == nil && i.Size > 0 {
				return "dnf"
			}
		}
	}
	return ""
}

// managerOf returns who speaks for the machine's packages.
func managerOf(v host.View) (manager, error) {
	switch Detect(v) {
	case "apt":
		return newApt(), nil
	case "dnf":
		return speaker(v)
	}
	return nil, &converge.Trouble{
		What: "cannot look at packages: this machine has no packaging system that gpuadm knows",
		Try:  []string{"say owner = \"other\" in the spec, if somebody else installs the driver"},
	}
}
