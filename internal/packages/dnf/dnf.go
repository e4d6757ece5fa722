// SPDX-License-Identifier: Apache-2.0

// Package dnf is the packager of RHEL and its derivatives: it reads the databases and the output of
// dnf 4 and rpm, and runs both.
package dnf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// dnf implements packages.Packager with rpm and dnf 4.
type dnf struct {
	wait time.Duration // for a lock that another dnf holds
	more []string      // options
	root string        // the folder with a database, lists and streams of its own that dnf works on; "" for the machine's
}

// unfiltered returns a dnf that also sees packages which the enabled module streams hide: a
// rollback may need packages of another stream.
func (a dnf) unfiltered() dnf {
	a.more = append(slices.Clone(a.more), "--setopt=*.module_hotfixes=1")
	return a
}

// unexcluded returns a dnf that also sees packages which excludepkgs hides: dnf(8),
// --disableexcludes.
func (a dnf) unexcluded() dnf {
	a.more = append(slices.Clone(a.more), "--disableexcludes=all")
	return a
}

// New returns the packager for dnf 4.
func New() packages.Packager { return dnf{wait: packages.LockWait} }

func (dnf) Name() string     { return "dnf" }
func (dnf) Database() string { return "rpm" }

// Files leaves out the auxiliary files beside rpm's database: they change whenever the database is
// read.
func (dnf) Files() []string {
	return append([]string{lockConf, lockList}, facts.RpmFiles()...)
}

func (dnf) Installed(ctx context.Context, v host.View) (map[string]packages.State, error) {
	if err := spoken(v); err != nil {
		return nil, err
	}
	d, err := readRPM(ctx, v)
	return d.packages, err
}

// Audit queries rpm only if dnf's lock shows that a transaction was cut short: rpm -V and dnf check
// do not report that.
func (dnf) Audit(ctx context.Context, v host.View, _ func() (map[string]packages.State, error)) (packages.Audit, error) {
	if err := spoken(v); err != nil {
		return packages.Audit{}, err
	}
	if pid := holds(v, dnfLock); pid != "" {
		return packages.Audit{}, packages.LockedBy(v, pid, "dnf's lock", nil)
	}
	if cutShort(v).IsZero() {
		return packages.Audit{}, nil
	}
	d, err := readRPM(ctx, v)
	a := packages.Audit{Broken: map[string]string{}}
	for _, p := range d.halfDone() {
		a.Interrupted = true
		a.Broken[p.keys()[0]] = "half-installed"
	}
	return a, err
}

// Repair waits for a dnf that runs, and finishes the transaction of a killed dnf: it removes the
// old versions that were to be replaced, and reinstalls packages that may be incomplete, scripts
// included.
func (a dnf) Repair(ctx context.Context, h host.Host) error {
	ctx, stop := context.WithTimeoutCause(ctx, packages.RepairLimit, host.OverLimit{Limit: packages.RepairLimit})
	defer stop()
	d, err := a.single(ctx, h)
	if err != nil {
		return err
	}
	var again []string
	for _, p := range d.halfDone() {
		again = append(again, cmp.Or(a.Stored(h, p.keys()[0], p.evr), p.full()))
	}
	if len(again) == 0 {
		return nil
	}
	out, err := a.run(ctx, h, append([]string{"reinstall"}, again...)...)
	if err == nil {
		err = scriptsRan(string(out))
	}
	if t := (*trouble.Error)(nil); errors.As(err, &t) {
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
	d, err := readRPM(ctx, h)
	if err != nil {
		return d, err
	}
	older := d.doubles()
	if len(older) == 0 {
		return d, nil
	}
	argv := []string{"rpm", "-e", "--nodeps"}
	for _, p := range older {
		argv = append(argv, p.full())
	}
	if _, err := packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) { return h.Do(ctx, packages.Quiet(h, argv...)...) }); err != nil {
		return d, err
	}
	return readRPM(ctx, h)
}

// options make dnf do exactly what its arguments say, and never ask: dnf(8), dnf.conf(5). Only the
// thing Lists reads lists, so that plan and transaction use the same lists. gpuadm itself handles
// version locks: the plugin would hide the packages that they exclude.
func (a dnf) options(v host.View) []string {
	from := a.more
	switch {
	case a.root != "":
		// dnf's variables and release are the machine's: dnf(8), --installroot.
		from = slices.Concat(from, []string{"--installroot=" + a.root, "--releasever=/", "--setopt=reposdir=" + a.root + ownRepos})
	case mirrored(v):
		from = append(slices.Clone(from), "--disablerepo=*", "--enablerepo="+packages.OurFiles+"*")
	}
	return append([]string{
		"--disableplugin=versionlock", "--setopt=*.metadata_expire=-1", "--setopt=install_weak_deps=0", "--setopt=best=1", "--setopt=strict=1",
		"--setopt=skip_broken=0", "--setopt=clean_requirements_on_remove=0", "--setopt=exit_on_lock=1", "--setopt=retries=3", "--color=never",
	}, from...)
}

// mirrored says whether all of gpuadm's repositories are mirrors: then dnf uses no others. A mirror
// needs none of the distribution's servers, which may be out of reach, and dnf fails if it cannot
// read an enabled repository.
func mirrored(v host.View) bool {
	ours, err := reposIn(v, repoFiles(v, packages.OurFiles, ".repo"))
	return err == nil && len(ours) > 0 && !slices.ContainsFunc(ours, func(r repository) bool { return !packages.IsMirror(v, r.url()) })
}

// run runs dnf once its lock is free, and returns what it said.
func (a dnf) run(ctx context.Context, h host.Host, args ...string) ([]byte, error) {
	argv := slices.Concat(packages.Quiet(h, "dnf", "-y"), a.options(h), args)
	return packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) { return h.Do(ctx, argv...) })
}

// free waits until no other process is in a transaction, during which the database shows neither
// the old nor the new state.
func (a dnf) free(ctx context.Context, h host.Host) error {
	_, err := packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) {
		if pid := holds(h, dnfLock); pid != "" {
			return nil, packages.Busy(h, pid, "dnf's lock", errors.New("another process holds the lock"))
		}
		return nil, nil
	})
	return err
}

// dnfLock has the id of the process that makes a transaction. dnf removes the file at the end; a
// killed dnf leaves it until the next transaction. Sources: ProcessLock in dnf/lock.py and
// Base.do_transaction in dnf/base.py of dnf's tree.
const dnfLock = "/var/lib/dnf/rpmdb_lock.pid"

// cutShort says when a dnf that was killed began its transaction; the zero time if none was killed,
// or if a dnf runs now.
func cutShort(v host.View) time.Time {
	i, err := v.Stat(dnfLock)
	if err != nil || i.Size == 0 || holds(v, dnfLock) != "" {
		return time.Time{}
	}
	return i.Ctime
}

// holder returns the id of the process that holds one of dnf's locks; "" if none does.
func holder(v host.View) string {
	return cmp.Or(holds(v, dnfLock), holds(v, dnfCache+"/metadata_lock.pid"), holds(v, dnfCache+"/download_lock.pid"))
}

// holds returns the id of the process that holds a lock of dnf's, if it still runs: a killed dnf
// leaves the file.
func holds(v host.View, lock string) string {
	data, err := v.ReadFile(lock)
	pid := strings.TrimSpace(string(data))
	if err != nil || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return ""
	}
	argv, err := v.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil || !sayPackager().Match(argv) {
		return "" // another process has that id now
	}
	return pid
}

// sayPackager matches the command line of a process that can hold the lock: dnf and yum are Python
// programs, others use dnf's library.
var sayPackager = pattern.Of(`dnf|yum|packagekit|PackageKit`)

// Stored returns the file in our own folder that a version of a package can be installed from; ""
// if there is none. dnf names what it downloads NAME-VERSION-RELEASE.ARCH.rpm.
func (dnf) Stored(v host.View, name, version string) string {
	for _, n := range packages.ListOf(v, packages.Store) {
		p, ok := rpmFile(n)
		if ok && packages.Unepoched(p.evr) == packages.Unepoched(version) && slices.Contains(p.keys(), name) {
			return path.Join(packages.Store, n)
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
	version := strings.LastIndexByte(nvr[:max(0, strings.LastIndexByte(nvr, '-'))], '-')
	if version < 1 {
		return rpmPackage{}, false
	}
	return rpmPackage{nvr[:version], nvr[version+1:], arch}, true
}

// spoken refuses any dnf but dnf 4: others have other options, messages and files.
func spoken(v host.View) error {
	const program = "/usr/bin/dnf"
	to, err := v.Readlink(program)
	if err == nil && strings.HasPrefix(path.Base(to), "dnf5") {
		return &trouble.Error{
			What: "cannot read installed packages: this machine has dnf 5, and gpuadm works with dnf 4",
			Try:  []string{"say owner = \"other\" in [driver], if another tool installs the driver"},
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

var (
	sayDnfError  = pattern.Of(`(?m)^Error: .*$|^error: .*$`)
	sayUnmatched = pattern.Of(`(?m)^(?:No match for argument: |Unable to find a match|All matches were filtered out by |Package \S+ not available|Installed package \S+ .*not available|Error: No packages? marked)`)
	// sayScript matches rpm's message about a failed script, after which dnf continues and exits
	// with 0: lib/rpmscript.c in rpm's tree.
	sayScript = pattern.Of(`(?m)%(post|posttrans)\((\S+)\) scriptlet failed, (.*?)\s*$`)
)

// dnfLocked is dnf's exit code where another dnf holds one of its locks: dnf(8), dnf/cli/main.py in
// its tree.
const dnfLocked = 200

// explain turns a failure of dnf or rpm into an error that an operator can act on.
func explain(v host.View, out string, err error) error {
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	if failed.Code == dnfLocked {
		return packages.Busy(v, holder(v), "dnf's lock", err)
	}
	if packages.MarkLock().MatchString(failed.Stderr) {
		return packages.Busy(v, holder(v), "rpm's lock", err)
	}
	t, known := packages.Failure(v, failed, out, err)
	if !known {
		t.Try = append(t.Try, "dnf check, which says whether anything is broken", "dnf repoquery --showduplicates PACKAGE, which says which versions there are", "dnf makecache --refresh, if the repository has changed since")
	}
	return t
}

// scriptsRan returns an error if the script of an installed package failed: dnf continues, and
// exits with 0. It ignores the scripts of removed packages and the triggers of others.
func scriptsRan(out string) error {
	m := sayScript().FindStringSubmatchIndex(out)
	if m == nil {
		return nil
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot install package %s: its script %%%s failed, %s", out[m[4]:m[5]], out[m[2]:m[3]], out[m[6]:m[7]]),
		Because: append(packages.Tail(out[:strings.LastIndexByte(out[:m[0]], '\n')+1], 6), "dnf itself goes on after such a failure"),
		Try:     []string{"dnf history info last, which has all that it said"},
	}
}
