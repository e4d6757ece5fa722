// SPDX-License-Identifier: Apache-2.0

// Package packages has the machine's packages as things: it installs a package in exactly one
// version, holds it there, and rolls it back to its earlier version, hold and automatic mark. It
// asks apt or dnf for candidates before anything changes, since apt's pins fail open: with a pin to
// a version that the repository no longer has, apt installs the newest and exits with 0.
//
// This package has the code that apt and dnf share. The packages apt and dnf below implement
// Packager and import this package. Nothing here imports them: a program passes the packagers that
// it knows to NewReading.
//
// Read first packages.go and solver.go, the contract with a packager; then:
//
//   - state.go, thing.go, set.go: one package, and the packages of one stage
//   - reading.go, database.go: the packager's database, read once and kept in order
//   - resolve.go, family.go, offers.go, missing.go, changes.go: what a request changes
//   - verify.go, lost.go, store.go: that the packager does only that, and that it can be undone
//   - repository.go, source.go, lists.go, declared.go, lack.go: where packages come from
//   - command.go, lock.go, failure.go: how a packager is run, and what its errors mean
//   - mirror.go, mirror_lock.go, module_package.go, modules.go: mirrors, and kernel modules
package packages

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A Packager is apt or dnf. Names of packages are the packager's; on a machine with several
// architectures a foreign one is written "name:arch" (dpkg) or "name.arch" (rpm).
type Packager interface {
	// Name is what facts call it.
	Name() string
	// Database is what its database is called: dpkg, rpm.
	Database() string
	// Files returns the files and folders that change whenever what Installed returns does.
	Files() []string
	// Installed returns the states of all packages, by name. It must cost little: each converged
	// apply asks for it.
	Installed(ctx context.Context, v host.View) (map[string]State, error)
	// Audit reports whether the database is in order: Locked while it is in use. It must cost
	// little, too; installed is Installed, or its result.
	Audit(ctx context.Context, v host.View, installed func() (map[string]State, error)) (Audit, error)
	// Repair has the packager finish its interrupted work, once.
	Repair(ctx context.Context, h host.Host) error
	// Resolve chooses the open versions, checks that every wanted version has a candidate, and has
	// the packager simulate the transaction. It returns one change for each package that would
	// change: those asked for, with an exact After, and dependencies and removals, with Dependency
	// set. It sets Lost on a change whose Before is no longer available. An error is a
	// *trouble.Error that names the package, what was found and where.
	Resolve(ctx context.Context, v host.View, ask Request) ([]converge.Change, error)
	// Available returns a Solver for the versions that repositories and Store have.
	Available() Solver
	// Transact makes the changes, dependencies included, in one transaction, then sets holds and
	// marks. First it fetches the installed versions that get replaced to Store, for a rollback.
	Transact(ctx context.Context, h host.Host, changes []converge.Change) error
	// Keep fetches the installed versions of packages to Store, as far as a repository has them.
	Keep(ctx context.Context, h host.Host, names []string) error
	// Stored returns the file in Store with a version of a package; "" if there is none.
	Stored(v host.View, name, version string) string

	// Stale reports whether lists of repositories in gpuadm's files are missing, or older than
	// these files.
	Stale(v host.View, files []string) (bool, error)
	// Update reads those lists again. It fails if one cannot be read, or has no accepted signature.
	Update(ctx context.Context, h host.Host, files []string) error
	// Affects reports whether a change to something makes the lists of repositories in files stale.
	Affects(files []string, by converge.Change) bool

	// Repositories wants files and keys of repositories; database also holds the keys that rpm
	// trusts.
	Repositories(database *Reading, repos []Repository, via host.Via) ([]converge.Want, error)
	// Contents are the files that say where packages come from, and for apt in which version.
	Contents(repos []Repository, via host.Via) map[string][]byte
	// Disable edits a file about sources of another tool so that it declares none of the
	// repositories.
	Disable(file string, data []byte, repos []Repository, sys System) []byte
	// Enabled wants the package that enables a missing repository, if no file of gpuadm's can.
	Enabled(database *Reading, l Lack) []converge.Want
	// Upgrades wants automatic upgrades to leave packages alone.
	Upgrades(names []string, needrestart bool) []converge.Want
	// FilesOf lists the files of installed packages, by name.
	FilesOf(ctx context.Context, v host.View, names []string) (map[string][]string, error)
}

// A Request is the input of Resolve.
type Request struct {
	Changes  []converge.Change
	Versions map[string]string // by group: the own version of its members that are not among the changes
	Family   *Family           // nil where the set has none
	IfThere  []string          // packages to leave out if no source has them
	Brought  []converge.Change // what earlier runs brought and hold, as it is: it goes once nothing needs it
	Stream   string            // of dnf's module nvidia-driver, with the packages; "" where there is none
}

// An Audit reports whether a packager's database is in order.
type Audit struct {
	Interrupted bool              // the packager was killed, or the power was cut, during a transaction
	Broken      map[string]string // packages that are not wholly installed, and the packager's word for it
}
