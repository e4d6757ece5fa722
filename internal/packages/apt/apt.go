// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package apt is the packager of Debian and Ubuntu: what apt and dpkg know and say, and how gpuadm runs them.
package apt

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	version "github.com/knqyf263/go-deb-version"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// apt speaks for dpkg and apt.
type apt struct {
	wait time.Duration // for a lock that another apt holds
}

// New returns what manages the machine by apt.
func New() packages.Packager { return apt{wait: packages.LockWait} }

func (apt) Name() string     { return "apt" }
func (apt) Database() string { return "dpkg" }
func (apt) Files() []string  { return []string{packages.DpkgStatus, dpkgUpdates, aptExtStates} }

func (apt) Installed(_ context.Context, v host.View) (map[string]packages.State, error) {
	return readStates(v)
}

func (apt) Audit(_ context.Context, v host.View, installed func() (map[string]packages.State, error)) (packages.Audit, error) {
	updates, err := updatesLeft(v)
	if err != nil {
		return packages.Audit{}, err
	}
	all, err := installed()
	if err != nil {
		return packages.Audit{}, err
	}
	a := packages.Audit{Interrupted: len(updates) > 0, Broken: map[string]string{}}
	for name, p := range all {
		if p.Broken != "" && p.Broken != packages.ConfigFiles {
			a.Broken[name] = p.Broken
		}
	}
	return a, nil
}

// Repair has dpkg finish what it was interrupted in.
func (a apt) Repair(ctx context.Context, h host.Host) error {
	ctx, stop := context.WithTimeoutCause(ctx, packages.RepairLimit, fmt.Errorf("not done within %v", packages.RepairLimit))
	defer stop()
	return a.again(ctx, h, packages.Quiet(h, "dpkg", "--force-confdef", "--force-confold", "--configure", "-a")...)
}

// readOnly keeps apt from writing its caches while it is only asked. One that is younger than all that it is made of is read, since apt
// does not write it then: without any, apt reads all lists for each answer. What it is made of: CheckValidity in apt-pkg/pkgcachegen.cc.
func readOnly(v host.View) (options []string) {
	const packagesToo, lists = "/var/cache/apt/pkgcache.bin", "/var/cache/apt/srcpkgcache.bin"
	read := younger(v, lists, aptLists, "/etc/apt", "/etc/apt/sources.list.d", "/etc/apt/apt.conf.d", dpkgArch, "/var/lib/dpkg/info/apt.list")
	if !read || !younger(v, packagesToo, lists, packages.DpkgStatus, dpkgUpdates) {
		options = append(options, "-o", "Dir::Cache::pkgcache=")
	}
	if !read {
		options = append(options, "-o", "Dir::Cache::srcpkgcache=")
	}
	return options
}

// younger says whether a file was written after others: after folders and the files in them, too. Of those the time that they were given
// counts, as it does for apt: see TouchList.
func younger(v host.View, file string, others ...string) bool {
	made, err := v.Stat(file)
	after := func(at time.Time) bool { return err != nil || at.After(made.Mtime) }
	for _, name := range others {
		if i, missing := v.Stat(name); missing == nil && after(i.Ctime) {
			return false
		}
		for _, n := range packages.ListOf(v, name) {
			if i, gone := v.Stat(name + "/" + n); gone != nil || i.Mode.IsRegular() && n != "lock" && after(i.Mtime) {
				return false
			}
		}
	}
	return err == nil
}

// options make apt do all that its arguments say, and never ask: apt-get(8), dpkg(1).
func (a apt) options() []string {
	return []string{
		"-y", "-q",
		"--no-install-recommends",
		"--allow-downgrades", // an exact version may be an older one
		"--allow-change-held-packages",
		"-o", "APT::Ignore-Hold=true", // apt.conf(5): it names the held packages that a change needs too, and gpuadm asks the operator
		"-o", "APT::Get::AutomaticRemove=false", "-o", "APT::Get::HideAutoRemove=true",
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", // a changed conffile is kept without a question
		"-o", "Dpkg::Use-Pty=0",
		"-o", "Acquire::Retries=3",
	}
}

// get runs apt-get.
func (a apt) get(ctx context.Context, h host.Host, args ...string) error {
	return a.again(ctx, h, packages.Quiet(h, slices.Concat([]string{"apt-get"}, a.options(), args)...)...)
}

// again runs a command that may find a lock held, until it is free or the wait ends.
func (a apt) again(ctx context.Context, h host.Host, argv ...string) error {
	_, err := packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) { return h.Do(ctx, argv...) })
	return err
}

// install is the argument of apt-get install for a change: NAME=VERSION or NAME-.
func install(name string, to packages.State) string {
	if to.Installed() {
		return name + "=" + to.Version
	}
	return name + "-"
}

// Compare orders versions as dpkg does: deb-version(7). What is no version of Debian's comes before all that are, as text.
func (apt) Compare(a, b string) int {
	x, errA := version.NewVersion(a)
	y, errB := version.NewVersion(b)
	switch {
	case errA == nil && errB == nil:
		return x.Compare(y)
	case errA == nil:
		return 1
	case errB == nil:
		return -1
	}
	return strings.Compare(a, b)
}
