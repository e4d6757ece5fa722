// SPDX-License-Identifier: Apache-2.0

// Package apt is the packager of Debian and Ubuntu: it reads the databases and the output of apt
// and dpkg, and runs both.
package apt

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	version "github.com/knqyf263/go-deb-version"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// apt implements packages.Packager with dpkg and apt.
type apt struct {
	wait  time.Duration // for a lock that another apt holds
	pins  string        // the folder of its pins
	needs *needs        // what the last simulation said; nil where gpuadm does not check the room
}

// New returns the packager for apt.
func New() packages.Packager { return apt{wait: packages.LockWait, pins: pinFolder} }

func (apt) Name() string     { return "apt" }
func (apt) Database() string { return "dpkg" }

func (apt) Files() []string {
	return []string{facts.DpkgStatus, dpkgUpdates, aptExtStates}
}

func (apt) Installed(_ context.Context, v host.View) (map[string]packages.State, error) {
	d, err := readDpkg(v)
	return d.packages, err
}

func (apt) Audit(
	ctx context.Context,
	v host.View,
	installed func() (map[string]packages.State, error),
) (packages.Audit, error) {
	updates, updatesErr := updatesLeft(v)
	all, installedErr := installed()
	if err := cmp.Or(updatesErr, installedErr); err != nil {
		return packages.Audit{}, err
	}

	audit := packages.Audit{Interrupted: len(updates) > 0, Broken: map[string]string{}}
	for name, p := range all {
		if p.Broken != "" && p.Broken != packages.ConfigFiles && p.Broken != packages.Incomplete {
			audit.Broken[name] = p.Broken
		}
	}

	if !audit.Interrupted && len(audit.Broken) == 0 {
		return audit, nil
	}

	// The database is also incomplete while another process works at it. lslocks(8) is asked for
	// inodes, since containers have files of these names.
	out, _ := v.Ask(ctx, "lslocks", "--noheadings", "--raw", "--output", "INODE,PID")
	for _, file := range []string{dpkgLock + "-frontend", dpkgLock} {
		info, err := v.Stat(file)
		_, after, locked := strings.Cut("\n"+string(out), fmt.Sprintf("\n%d ", info.Inode))
		if err == nil && locked {
			pid := strings.Fields(after)[0]
			return packages.Audit{}, packages.LockedBy(v, pid, file, nil)
		}
	}

	return audit, nil
}

// Repair has dpkg finish the work in which it was interrupted.
func (a apt) Repair(ctx context.Context, h host.Host) error {
	limit := host.OverLimit{Limit: packages.RepairLimit}
	ctx, stop := context.WithTimeoutCause(ctx, packages.RepairLimit, limit)
	defer stop()
	configure := packages.Quiet(h, "dpkg", "--force-confdef", "--force-confold", "--configure", "-a")
	return a.again(ctx, h, configure...)
}

// options make apt do all that its arguments say, without questions: apt-get(8), dpkg(1).
func (a apt) options() []string {
	return []string{
		"-y", "-q",
		"--no-install-recommends",
		"-o", "APT::Install-Suggests=false",
		// Since 2.5.2 apt also upgrades other packages that were built from the source of a
		// dependency: MarkInstall_UpgradeOtherBinaries in apt-pkg/depcache.cc.
		"-o", "APT::Get::Upgrade-By-Source-Package=false",

		"--allow-downgrades", // an exact version may be an older one
		"--allow-change-held-packages",
		// apt.conf(5): apt then also lists held packages that a change needs, and gpuadm asks the
		// operator.
		"-o", "APT::Ignore-Hold=true",
		"-o", "APT::Get::AutomaticRemove=false", "-o", "APT::Get::HideAutoRemove=true",

		// dpkg keeps a changed conffile without a question.
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",

		"-o", "Dpkg::Use-Pty=0", "-o", "APT::Status-Fd=" + host.StatusFd,
		"-o", "Acquire::Retries=3",
	}
}

// unpinned are options for commands that name each version, or none: pins with patterns would take
// as long as it takes to match all names.
func unpinned() []string {
	return []string{"-o", "Dir::Etc::Preferences=/dev/null", "-o", "Dir::Etc::PreferencesParts=/dev/null"}
}

// again repeats a command that finds a lock held, until the lock is free or the wait ends.
func (a apt) again(ctx context.Context, h host.Host, argv ...string) error {
	run := func() ([]byte, error) { return h.Do(ctx, argv...) }
	_, err := packages.Patiently(ctx, h, a.wait, explain, run)
	return err
}

// install is the argument of apt-get install for a change: NAME=VERSION or NAME-.
func install(name string, to packages.State) string {
	if to.Installed() {
		return name + "=" + to.Version
	}
	return name + "-"
}

// Compare orders versions as dpkg does: deb-version(7). A text that is not a Debian version sorts
// before all versions.
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

// readOnly keeps apt from writing its caches when gpuadm only queries it. A cache that is younger
// than all its inputs is used, since apt does not write that; without a cache apt reads all lists
// for each answer. Its inputs: CheckValidity in apt-pkg/pkgcachegen.cc. apt's settings are an input
// too, since they select lists. gpuadm's own settings select none, and it writes them between two
// queries: so the times of the other files count, and not that of their folder.
func readOnly(v host.View) (options []string) {
	const (
		cacheOfAll   = "/var/cache/apt/pkgcache.bin"
		cacheOfLists = "/var/cache/apt/srcpkgcache.bin"
		settings     = "/etc/apt/apt.conf.d"
	)
	inputs := []string{
		aptLists, "/etc/apt", "/etc/apt/sources.list.d",
		dpkgArch, "/var/lib/dpkg/info/apt.list",
	}
	for _, name := range packages.ListOf(v, settings) {
		if !strings.Contains(name, "gpuadm") {
			inputs = append(inputs, settings+"/"+name)
		}
	}

	listsCurrent := younger(v, cacheOfLists, inputs...)
	if !listsCurrent || !younger(v, cacheOfAll, cacheOfLists, facts.DpkgStatus, dpkgUpdates) {
		options = append(options, "-o", "Dir::Cache::pkgcache=")
	}
	if !listsCurrent {
		options = append(options, "-o", "Dir::Cache::srcpkgcache=")
	}
	return options
}

// younger reports whether a file was written after others, which may be folders with their files.
// Of files in folders the modification time counts, as for apt: see TouchList.
func younger(v host.View, file string, others ...string) bool {
	made, err := v.Stat(file)
	if err != nil {
		return false
	}
	for _, name := range others {
		info, err := v.Stat(name)
		if err == nil && info.Ctime.After(made.Mtime) {
			return false
		}
		for _, entry := range packages.ListOf(v, name) {
			info, err := v.Stat(name + "/" + entry)
			input := info.Mode.IsRegular() && entry != "lock"
			if err != nil || input && info.Mtime.After(made.Mtime) {
				return false
			}
		}
	}

	return true
}
