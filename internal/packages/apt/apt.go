// SPDX-License-Identifier: Apache-2.0

// Package apt is the packager of Debian and Ubuntu: it reads the databases and the output of apt
// and dpkg, and runs both.
package apt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	version "github.com/knqyf263/go-deb-version"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// apt implements packages.Packager with dpkg and apt.
type apt struct {
	wait  time.Duration // for a lock that another apt holds
	pins  string        // the folder of its pins
	needs *needs        // of what apt was last asked about; nil where none are judged
}

// New returns the packager for apt.
func New() packages.Packager { return apt{wait: packages.LockWait, pins: pinFolder} }

func (apt) Name() string     { return "apt" }
func (apt) Database() string { return "dpkg" }
func (apt) Files() []string  { return []string{facts.DpkgStatus, dpkgUpdates, aptExtStates} }

func (apt) Installed(_ context.Context, v host.View) (map[string]packages.State, error) {
	d, err := readDpkg(v)
	return d.packages, err
}

func (apt) Audit(ctx context.Context, v host.View, installed func() (map[string]packages.State, error)) (packages.Audit, error) {
	updates, err := updatesLeft(v)
	all, failed := installed()
	if err := cmp.Or(err, failed); err != nil {
		return packages.Audit{}, err
	}
	a := packages.Audit{Interrupted: len(updates) > 0, Broken: map[string]string{}}
	for name, p := range all {
		if p.Broken != "" && p.Broken != packages.ConfigFiles {
			a.Broken[name] = p.Broken
		}
	}
	if !a.Interrupted && len(a.Broken) == 0 {
		return a, nil
	}
	out, _ := v.Ask(ctx, "lslocks", "--noheadings", "--raw", "--output", "INODE,PID") // lslocks(8); by inode, since containers have files of that name
	for _, file := range []string{dpkgLock + "-frontend", dpkgLock} {
		i, err := v.Stat(file)
		if _, pid, is := strings.Cut("\n"+string(out), fmt.Sprintf("\n%d ", i.Inode)); err == nil && is {
			return packages.Audit{}, packages.LockedBy(v, strings.Fields(pid)[0], file, nil)
		}
	}
	return a, nil
}

// Repair has dpkg finish the work in which it was interrupted.
func (a apt) Repair(ctx context.Context, h host.Host) error {
	ctx, stop := context.WithTimeoutCause(ctx, packages.RepairLimit, host.OverLimit{Limit: packages.RepairLimit})
	defer stop()
	return a.again(ctx, h, packages.Quiet(h, "dpkg", "--force-confdef", "--force-confold", "--configure", "-a")...)
}

// readOnly keeps apt from writing its caches when gpuadm only queries it. A cache that is younger
// than all its inputs is used, since apt does not write that; without a cache apt reads all lists
// for each answer. Its inputs: CheckValidity in apt-pkg/pkgcachegen.cc. apt's settings are an input
// too, since they select lists. gpuadm's own settings select none, and it writes them between two
// queries: so the times of the other files count, and not that of their folder.
func readOnly(v host.View) (options []string) {
	const packagesToo, lists = "/var/cache/apt/pkgcache.bin", "/var/cache/apt/srcpkgcache.bin"
	made := []string{aptLists, "/etc/apt", "/etc/apt/sources.list.d", dpkgArch, "/var/lib/dpkg/info/apt.list"}
	const settings = "/etc/apt/apt.conf.d"
	for _, name := range packages.ListOf(v, settings) {
		if !strings.Contains(name, "gpuadm") {
			made = append(made, settings+"/"+name)
		}
	}
	read := younger(v, lists, made...)
	if !read || !younger(v, packagesToo, lists, facts.DpkgStatus, dpkgUpdates) {
		options = append(options, "-o", "Dir::Cache::pkgcache=")
	}
	if !read {
		options = append(options, "-o", "Dir::Cache::srcpkgcache=")
	}
	return options
}

// younger says whether a file was written after others, which may be folders with their files. Of
// the others the modification time counts, as for apt: see TouchList.
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

// options make apt do all that its arguments say, without questions: apt-get(8), dpkg(1).
func (a apt) options() []string {
	return []string{
		"-y", "-q",
		"--no-install-recommends",
		"--allow-downgrades", // an exact version may be an older one
		"--allow-change-held-packages",
		"-o", "APT::Ignore-Hold=true", // apt.conf(5): apt then also lists held packages that a change needs, and gpuadm asks the operator
		"-o", "APT::Get::AutomaticRemove=false", "-o", "APT::Get::HideAutoRemove=true",
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", // a changed conffile is kept without a question
		"-o", "Dpkg::Use-Pty=0", "-o", "APT::Status-Fd=" + host.StatusFd,
		"-o", "Acquire::Retries=3",
	}
}

// unpinned is for what names each version, or none: pins with patterns cost a question as long as
// it takes to match all names.
func unpinned() []string {
	return []string{"-o", "Dir::Etc::Preferences=/dev/null", "-o", "Dir::Etc::PreferencesParts=/dev/null"}
}

// again repeats a command that finds a lock held, until the lock is free or the wait ends.
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

// Compare orders versions as dpkg does: deb-version(7). A text that is no Debian version sorts
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

// The messages about a held lock of apt (GetLock in apt-pkg/contrib/fileutl.cc) and dpkg (file_lock
// in lib/dpkg/file.c).
var (
	markHolder = pattern.Of(`(?:held by process|with pid) (\d+)`)
	markFile   = pattern.Of(`lock (?:on )?(/\S*[^\s.])`)
)

// explain turns a failure of apt or dpkg into an error that an operator can act on.
func explain(v host.View, out string, err error) error {
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	if err := refused(out); err != nil {
		return err
	}
	all := failed.Stderr + "\n" + out
	if packages.MarkLock().MatchString(failed.Stderr) {
		pid, lock := "", "dpkg's lock"
		if m := markHolder().FindStringSubmatch(all); m != nil {
			pid = m[1]
		}
		if m := markFile().FindStringSubmatch(all); m != nil {
			lock = m[1]
		}
		return packages.Busy(v, pid, lock, err)
	}
	t, known := packages.Failure(v, failed, out, err)
	if known {
		return t
	}
	if dpkgFailed(v, t, out, failed.Stderr) {
		return t
	}
	if len(t.Because) == 0 {
		t.Because = packages.Tail(out, 6) // there apt names the packages that conflict
	}
	t.Try = append(t.Try, "apt-get check, which says whether anything is broken", "apt-cache policy PACKAGE, which says which versions there are, and where", "apt-get update, if the repository has changed since")
	return t
}

// dpkgFailed names the packages that a failed dpkg has left half installed, by its database, and
// adds the output of the first package's script and of its compiler. It returns false where dpkg
// has not run, or left no such package.
func dpkgFailed(v host.View, t *trouble.Error, out, said string) bool {
	d, err := readDpkg(v)
	if err != nil || !strings.Contains(said, "dpkg") {
		return false
	}
	var half []string
	for name, p := range d.packages {
		if p.Broken == "half-configured" || p.Broken == "half-installed" {
			half = append(half, name)
		}
	}
	slices.Sort(half)
	switch {
	case d.interrupted:
		t.What = packages.Cannot + "dpkg was killed or interrupted"
		t.Because = packages.Short(append(t.Because, half...))
		t.Try = []string{"journalctl -k, which says whether the kernel ran out of memory", "run " + trouble.Command("apply") + " again, which lets dpkg finish first"}
		return true
	case len(half) == 0:
		return false
	}
	name := half[0]
	t.What = fmt.Sprintf("cannot install package %s: dpkg has left it %s", name, d.packages[name].Broken)
	if len(half) > 1 {
		t.What += "; so are " + strings.Join(half[1:], ", ")
	}
	t.Because = nil
	const dkmsTree = "/var/lib/dkms"
	for _, module := range packages.ListOf(v, dkmsTree) { // undo removes the log with the package
		if log, err := v.ReadFile(path.Join(dkmsTree, module, packages.Own(d.packages[name].Version), "build", "make.log")); err == nil {
			t.Because = append(t.Because, kmod.FirstError(string(log)))
		}
	}
	// Scripts write to either stream, before dpkg's own words.
	if _, after, ok := strings.Cut(out, "Setting up "+name+" "); ok {
		t.Because = append(t.Because, packages.Lines(after)[1:min(6, len(packages.Lines(after)))]...)
	}
	before, own, _ := strings.Cut(said, "dpkg: error processing")
	t.Because = append(t.Because, packages.Tail(before, 6)...)
	if own != "" {
		t.Because = append(t.Because, packages.Lines("dpkg: error processing" + own)[:min(2, len(packages.Lines(own)))]...)
	}
	t.Because = packages.Short(t.Because)
	t.Try = append(t.Try, "/var/log/apt/term.log, which has all that it said")
	return true
}
