// SPDX-License-Identifier: Apache-2.0

// Package dnf is the packager of RHEL and its derivatives: it reads the databases and the output of
// dnf 4 and rpm, and runs both.
package dnf

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// dnf implements packages.Packager with rpm and dnf 4.
type dnf struct {
	wait time.Duration // for a lock that another dnf holds
	more []string      // options
	// root is the folder with a database, lists and streams of its own that dnf works on; "" for
	// the machine's.
	root string

	memory *recall.Memory // what rpm said of its database; nil remembers nothing
}

// unfiltered returns a dnf that also sees packages which the enabled module streams hide: a
// rollback may need packages of another stream.
func (a dnf) unfiltered() dnf {
	a.more = append(slices.Clone(a.more), "--setopt=*.module_hotfixes=1")
	return a
}

// unexcluded returns a dnf that also sees packages which excludepkgs and includepkgs hide: dnf(8),
// --disableexcludes.
func (a dnf) unexcluded() dnf {
	a.more = append(slices.Clone(a.more), "--disableexcludes=all")
	return a
}

// New returns the packager for dnf 4. memory, or nil, knows what rpm said of its database.
func New(memory *recall.Memory) packages.Packager {
	return dnf{wait: packages.LockWait, memory: memory}
}

func (dnf) Name() string     { return "dnf" }
func (dnf) Database() string { return "rpm" }

// Files leaves out the auxiliary files of rpm's database: they change whenever the database is
// read.
func (dnf) Files() []string {
	return append([]string{dnfConf, lockConf, lockList}, facts.RpmFiles()...)
}

func (a dnf) Installed(ctx context.Context, v host.View) (map[string]packages.State, error) {
	if err := requireDnf4(v); err != nil {
		return nil, err
	}
	d, err := a.readRPM(ctx, v)
	return d.packages, err
}

// Audit queries rpm only if dnf's lock shows that a transaction was cut short: rpm -V and dnf check
// do not report that.
func (a dnf) Audit(
	ctx context.Context,
	v host.View,
	_ func() (map[string]packages.State, error),
) (packages.Audit, error) {
	if err := requireDnf4(v); err != nil {
		return packages.Audit{}, err
	}
	if pid := holderOf(v, dnfLock); pid != "" {
		return packages.Audit{}, packages.LockedBy(v, pid, "dnf's lock", nil)
	}
	if cutShort(v).IsZero() {
		return packages.Audit{}, nil
	}

	d, err := a.readRPM(ctx, v)
	audit := packages.Audit{Broken: map[string]string{}}
	for _, p := range d.halfDone() {
		audit.Interrupted = true
		audit.Broken[p.keys()[0]] = "half-installed"
	}

	return audit, err
}

// Repair waits for a dnf that runs, and finishes the transaction of a killed dnf: it removes the
// old versions that were to be replaced, and reinstalls packages that may be incomplete, scripts
// included.
func (a dnf) Repair(ctx context.Context, h host.Host) error {
	limit := host.OverLimit{Limit: packages.RepairLimit}
	ctx, stop := context.WithTimeoutCause(ctx, packages.RepairLimit, limit)
	defer stop()
	d, err := a.single(ctx, h)
	if err != nil {
		return err
	}

	args := []string{"reinstall"}
	incomplete := d.halfDone()
	for _, p := range incomplete {
		args = append(args, cmp.Or(a.Stored(h, p.keys()[0], p.evr), p.full()))
	}
	if len(incomplete) == 0 {
		return nil
	}
	out, err := a.run(ctx, h, args...)
	if err == nil {
		err = scriptsRan(string(out))
	}
	var t *trouble.Error
	if errors.As(err, &t) {
		t.Because = append(t.Because, "a dnf that was killed has left it unfinished: dnf history")
	}
	return err
}

// single reads the database once it is free, and removes the older version of packages that a
// killed dnf has left installed twice, as dnf would have.
func (a dnf) single(ctx context.Context, h host.Host) (rpmDatabase, error) {
	if err := a.free(ctx, h); err != nil {
		return rpmDatabase{}, err
	}
	d, err := a.readRPM(ctx, h)
	if err != nil {
		return d, err
	}
	older := d.doubles()
	if len(older) == 0 {
		return d, nil
	}

	erase := packages.Quiet(h, "rpm", "-e", "--nodeps")
	for _, p := range older {
		erase = append(erase, p.full())
	}
	run := func() ([]byte, error) { return h.Do(ctx, erase...) }
	if _, err := packages.Patiently(ctx, h, a.wait, explain, run); err != nil {
		return d, err
	}
	return a.readRPM(ctx, h)
}

// options make dnf do exactly what its arguments say, and never ask: dnf(8), dnf.conf(5). Only the
// thing Lists reads lists, so that plan and transaction use the same lists. gpuadm itself handles
// version locks: the plugin would hide the packages that they exclude.
func (a dnf) options(v host.View) []string {
	options := []string{
		"--disableplugin=versionlock", "--setopt=*.metadata_expire=-1",
		"--setopt=install_weak_deps=0", "--setopt=best=1", "--setopt=strict=1",
		"--setopt=skip_broken=0", "--setopt=clean_requirements_on_remove=0",
		"--setopt=exit_on_lock=1", "--setopt=retries=3", "--color=never",
	}
	options = append(options, a.more...)
	switch {
	case a.root != "":
		// dnf's variables and release are the machine's: dnf(8), --installroot.
		repos := "--setopt=reposdir=" + a.root + ownRepos
		return append(options, "--installroot="+a.root, "--releasever=/", repos)
	case mirrored(v):
		return append(options, "--disablerepo=*", "--enablerepo="+packages.OurFiles+"*")
	}

	return options
}

// mirrored reports whether all of gpuadm's repositories are mirrors: then dnf uses no others. A
// mirror needs none of the distribution's servers, which may be out of reach, and dnf fails if it
// cannot read an enabled repository.
func mirrored(v host.View) bool {
	ours, err := reposIn(v, repoFiles(v, packages.OurFiles))
	if err != nil || len(ours) == 0 {
		return false
	}
	needsOthers := func(r repository) bool { return !packages.IsMirror(v, r.url()) }
	return !slices.ContainsFunc(ours, needsOthers)
}

// run runs dnf once its lock is free, and returns what it said.
func (a dnf) run(ctx context.Context, h host.Host, args ...string) ([]byte, error) {
	argv := slices.Concat(packages.Quiet(h, "dnf", "-y"), a.options(h), args)
	return packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) {
		return h.Do(ctx, argv...)
	})
}

// requireDnf4 refuses any dnf but dnf 4: others have other options, messages and files.
func requireDnf4(v host.View) error {
	const program = "/usr/bin/dnf"
	target, err := v.Readlink(program)
	if err == nil && strings.HasPrefix(path.Base(target), "dnf5") {
		return &trouble.Error{
			What: "cannot read installed packages: this machine has dnf 5, and gpuadm works with dnf 4",
			Try:  []string{`write owner = "other" in [driver], and leave out [toolkit], if another tool installs driver and toolkit`},
		}
	}

	if _, err := v.Stat(program); errors.Is(err, fs.ErrNotExist) {
		return &trouble.Error{
			What: "cannot read installed packages: rpm manages this machine, and dnf is not installed",
			Try:  []string{"install dnf (tdnf install dnf on Azure Linux), then run the same command again"},
		}
	}

	return nil
}

// Stored returns the file in our own folder that a version of a package can be installed from; ""
// if there is none. dnf names what it downloads NAME-VERSION-RELEASE.ARCH.rpm.
func (dnf) Stored(v host.View, name, version string) string {
	for _, file := range packages.ListOf(v, packages.Store) {
		p, ok := rpmFile(file)
		sameVersion := packages.Unepoched(p.evr) == packages.Unepoched(version)
		if ok && sameVersion && slices.Contains(p.keys(), name) {
			return path.Join(packages.Store, file)
		}
	}
	return ""
}

// rpmFile reads NAME-VERSION-RELEASE.ARCH.rpm.
func rpmFile(file string) (rpmPackage, bool) {
	nvra, ok := strings.CutSuffix(file, ".rpm")
	dot := strings.LastIndexByte(nvra, '.')
	if !ok || dot < 0 {
		return rpmPackage{}, false
	}
	nvr, arch := nvra[:dot], nvra[dot+1:]
	beforeRelease := nvr[:max(0, strings.LastIndexByte(nvr, '-'))]
	hyphen := strings.LastIndexByte(beforeRelease, '-')
	if hyphen < 1 {
		return rpmPackage{}, false
	}
	return rpmPackage{name: nvr[:hyphen], evr: nvr[hyphen+1:], arch: arch}, true
}
