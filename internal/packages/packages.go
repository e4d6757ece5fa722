// SPDX-License-Identifier: Apache-2.0

// Package packages holds the machine's packages as things: installed in exactly one version, held there, and rolled back
// to the version, the hold and the automatic mark that they had. It asks apt or dnf for candidates before anything
// changes, since apt's pins fail open: a pin to a version that has left the repository installs the newest, and exits 0.
//
// What apt and dnf share is here. What each does in its own way is below, in the packages apt and dnf, which implement
// Packager and import this one. Nothing here imports them: NewReading is given those that a program knows.
package packages

import (
	"context"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A Packager is apt or dnf. Names of packages are the packager's; on a machine with several architectures a foreign one is
// written "name:arch" (dpkg) or "name.arch" (rpm).
type Packager interface {
	// Name is what Detect returns of a machine that it manages.
	Name() string
	// Database is what its database is called: dpkg, rpm.
	Database() string
	// Files returns the files and folders that change whenever what Installed returns does.
	Files() []string
	// Installed returns the states of all packages, by name. It must cost little: each converged apply asks for it.
	Installed(ctx context.Context, v host.View) (map[string]State, error)
	// Audit says whether the database is in order. It must cost little, too; installed is Installed, or what that has found already.
	Audit(ctx context.Context, v host.View, installed func() (map[string]State, error)) (Audit, error)
	// Repair lets the packager finish once what it was interrupted in.
	Repair(ctx context.Context, h host.Host) error
	// Resolve closes open versions, checks that every wanted version has a candidate, and asks the packager by simulation
	// what the transaction would do. It returns one change for each package that would change: those asked for, with
	// After closed, and those drawn along (dependencies, removals) with Dependency set. Lost is set on a change whose Before
	// is no longer available. An error is a *trouble.Error that names the package, what was found and where.
	Resolve(ctx context.Context, v host.View, ask Request) ([]converge.Change, error)
	// Available answers for what repositories and Store have.
	Available() Solver
	// Known returns what the lists on disk say of packages, and when the youngest was read; the zero time if a list of a
	// configured repository is missing. ours are files about repositories to leave out.
	Known(ctx context.Context, v host.View, names, ours []string) (map[string][]Offer, time.Time, error)
	// Transact makes the changes, all drawn ones included, in one transaction, then sets holds and marks. It fetches the
	// installed versions that get replaced to Store first, for the way back.
	Transact(ctx context.Context, h host.Host, changes []converge.Change) error
	// Keep fetches the installed versions of packages to Store, as far as a repository has them.
	Keep(ctx context.Context, h host.Host, names []string) error
	// Stored is the file in Store that a version of a package can be installed from; "" if there is none.
	Stored(v host.View, name, version string) string

	// Stale says whether lists of repositories that our files configure are missing, or older than those files.
	Stale(v host.View, files []string) (bool, error)
	// Update reads those lists again. It fails if one cannot be read, or has no accepted signature.
	Update(ctx context.Context, h host.Host, files []string) error
	// Affects says whether a change to something makes the lists of repositories in files stale.
	Affects(files []string, by converge.Change) bool

	// Repositories wants files and keys of repositories; database also holds the keys that rpm trusts.
	Repositories(database *Reading, repos []Repository, via host.Via) ([]converge.Want, error)
	// Contents are the files that say where packages come from, and for apt in which version.
	Contents(repos []Repository, via host.Via) map[string][]byte
	// Disable edits a file about sources of another tool so that it declares none of the repositories.
	Disable(file string, data []byte, repos []Repository, sys System) []byte
	// Enabled wants the package that enables what lacks, where gpuadm has no file that does.
	Enabled(database *Reading, l Lack) []converge.Want
	// Upgrades wants automatic upgrades to leave packages alone.
	Upgrades(names []string, needrestart bool) []converge.Want
	// FilesOf lists the files of installed packages, by name.
	FilesOf(ctx context.Context, v host.View, names []string) (map[string][]string, error)
	// Describe describes those of the packages that are installed, by name.
	Describe(ctx context.Context, v host.View, names []string) (map[string]Description, error)
	// Leftovers names what earlier instructions for installing drivers have left in the packager's configuration.
	Leftovers(v host.View) []string
}

// A Request is what Resolve works out.
type Request struct {
	Changes  []converge.Change
	Versions map[string]string // by group: the own version of its members that are not among the changes
	Family   *Family           // nil where the set has none
	IfThere  []string          // packages that are left out where no source has them
	Stream   string            // of dnf's module nvidia-driver that the packages are in; "" where there is none
}

// An Audit says whether a packager's database is in order.
type Audit struct {
	Interrupted bool              // the packager was killed, or the power was cut, during a transaction
	Broken      map[string]string // packages that are not wholly installed, and the packager's word for it
}

// Where dpkg and rpm keep their databases. Fedora and RHEL 10 keep rpm's below /usr; /var/lib/rpm is a link to it, or the
// place itself.
const DpkgStatus = "/var/lib/dpkg/status"

func RpmFolders() []string { return []string{"/var/lib/rpm", "/usr/lib/sysimage/rpm"} }

// Detect says which packager manages the machine: "apt", "dnf", or "" for none that is known.
// Either tool may be installed on the other's system; then its database is empty.
func Detect(v host.View) string {
	if i, err := v.Stat(DpkgStatus); err == nil && i.Size > 0 {
		return "apt"
	}
	for _, dir := range RpmFolders() {
		for _, file := range []string{"rpmdb.sqlite", "Packages.db", "Packages"} {
			if i, err := v.Stat(dir + "/" + file); err == nil && i.Size > 0 {
				return "dnf"
			}
		}
	}
	return ""
}
