// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The messages about a held lock of apt (GetLock in apt-pkg/contrib/fileutl.cc) and dpkg (file_lock
// in lib/dpkg/file.c).
var (
	markHolder = pattern.Of(`(?:held by process|with pid) (\d+)`)
	markFile   = pattern.Of(`lock (?:on )?(/\S*[^\s.])`)
)

// markMalformed is apt's message about a list with an entry that it cannot read, and about dpkg's
// database: pkgDebianIndexFile::Merge in apt-pkg/indexfile.cc, of which both are kinds.
var markMalformed = pattern.Of(`Problem with MergeList (\S+)`)

// markUnmet is apt's message that it refuses all work, since an installed package lacks a
// dependency: CheckDeps in apt-private/private-cachefile.cc, and DoInstall in private-install.cc.
var markUnmet = pattern.Of(`(?m)^E: Unmet dependencies`)

// explain turns a failure of apt or dpkg into an error that an operator can act on.
func explain(v host.View, out string, err error) error {
	var failed *host.CommandError
	if !errors.As(err, &failed) {
		return err
	}
	if err := refused(out); err != nil {
		return err
	}
	if packages.MarkLock().MatchString(failed.Stderr) {
		pid, lock := lockIn(failed.Stderr + "\n" + out)
		return packages.Busy(v, pid, lock, err)
	}

	t, known := packages.Failure(v, failed, out, err)
	if known && strings.Contains(t.What, dkmsTree) {
		// A full disk of its own: apt-get clean frees nothing there.
		t.Try = kmod.BuildRemedy(v, t.What)
	}
	if known || dpkgFailed(v, t, out, failed.Stderr) {
		return t
	}
	if markUnmet().MatchString(failed.Stderr) && lacksDependency(v, t) {
		return t
	}
	if words := archiveErrors(failed.Stderr); len(words) > 0 {
		t.Because = packages.Short(words)
	}
	if len(t.Because) == 0 {
		t.Because = packages.Tail(out, 6) // there apt names the packages that conflict
	}
	if list := markMalformed().FindStringSubmatch(failed.Stderr); list != nil {
		malformed(t, list[1])
		return t
	}

	t.Try = append(t.Try,
		"sudo apt-get check, which says whether anything is broken",
		"apt-cache policy PACKAGE, which says which versions there are, and where",
		"sudo apt-get update, if the repository has changed since")
	return t
}

// malformed describes a file with an entry that apt cannot read. dpkg keeps the database as it was
// before, and Debian's and Ubuntu's dpkg-db-backup makes a copy each day: dpkg(1), FILES.
func malformed(t *trouble.Error, file string) {
	if file == facts.DpkgStatus {
		t.What = packages.Cannot + "apt cannot read dpkg's database, " + file
		t.Try = []string{
			"find the broken entry: diff " + file + "-old " + file + " shows what dpkg has changed last; /var/backups has older copies, such as dpkg.status.0",
			"correct it by hand, then run the same command again",
		}
		return
	}

	t.What = packages.Cannot + "apt cannot read the list of a repository, " + file
	t.Try = []string{
		"if it is a mirror of your own: make its list again (apt-ftparchive, reprepro), and see that each package in it has a Package: line",
		"until then, name another repository in [driver]",
	}
}

// lockIn returns the process that holds a lock, and the lock's file, as messages name them.
func lockIn(messages string) (pid, lock string) {
	lock = "dpkg's lock"
	if m := markHolder().FindStringSubmatch(messages); m != nil {
		pid = m[1]
	}
	if m := markFile().FindStringSubmatch(messages); m != nil {
		lock = m[1]
	}
	return pid, lock
}

// dpkgFailed names the packages that a failed dpkg has left half installed, by its database, and
// adds the output of the first package's script and of its compiler. It returns false where dpkg
// has not run, or left no such package.
func dpkgFailed(v host.View, t *trouble.Error, out, stderr string) bool {
	d, err := readDpkg(v)
	if err != nil || !strings.Contains(stderr, "dpkg") {
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
		t.Try = []string{
			"journalctl -k, which says whether the kernel ran out of memory",
			"run " + trouble.Command("apply") + " again, which lets dpkg finish first",
		}
		return true
	case len(half) == 0:
		return false
	}

	first := d.packages[half[0]]
	t.What = fmt.Sprintf("cannot install package %s: dpkg has left it %s", half[0], first.Broken)
	if len(half) > 1 {
		t.What += "; so are " + strings.Join(half[1:], ", ")
	}
	errs := compilerErrors(v, packages.Own(first.Version))
	t.Because = packages.Short(slices.Concat(errs, scriptOutput(half[0], d.native, out, stderr)))
	for _, err := range errs {
		t.Try = append(kmod.BuildRemedy(v, err), t.Try...)
	}
	teach(v, t, packages.Own(first.Version))
	t.Try = append(t.Try, "/var/log/apt/term.log, which has all that it said")
	return true
}

// lacksDependency names the installed packages that lack a dependency. It returns false where there
// is none: then apt found no solution for what it was asked to install. apt's own advice does not
// suit: where no source has the dependency, --fix-broken removes what needs it.
func lacksDependency(v host.View, t *trouble.Error) bool {
	d, err := readDpkg(v)
	if err != nil {
		return false
	}

	all := d.dependencies()
	var lacking, because []string
	lost := ""
	for _, name := range slices.Sorted(maps.Keys(d.packages)) {
		clauses := all.unmet(name)
		if len(clauses) == 0 || !d.packages[name].Installed() {
			continue
		}
		lacking = append(lacking, name)
		lost = cmp.Or(lost, clauses[0])
		for _, clause := range clauses {
			const needs = "%s %s depends on %s, which is not installed"
			because = append(because, fmt.Sprintf(needs, name, d.packages[name].Version, clause))
		}
	}

	if len(lacking) == 0 {
		return false
	}

	first := relationOf(lost).name
	names := strings.Join(trouble.Few(lacking, 4), ", ")
	const forced = "it was removed outside gpuadm, by dpkg --force-depends or the like"
	t.What = packages.Cannot + "apt refuses all work, since " + names + " lacks a dependency"
	t.Because = packages.Short(append(because, forced))
	t.Try = []string{
		"apt-cache policy " + first + ", which says whether a source has it",
		"if one has it: sudo apt-get --fix-broken install, which brings it back and asks before it removes anything",
		"if none has it: add a source or mirror that does, run sudo apt-get update, then the same command again",
	}
	return true
}

const dkmsTree = "/var/lib/dkms"

// teach adds to an error that the driver's modules of a version do not build, by the log in DKMS's
// tree: it names the kernel.
func teach(v host.View, t *trouble.Error, version string) {
	kernels := packages.ListOf(v, "/lib/modules")
	for _, module := range packages.ListOf(v, dkmsTree) {
		isDrivers := strings.HasPrefix(module, "nvidia") && !strings.HasPrefix(module, "nvidia-fs")
		if !isDrivers {
			continue
		}
		data, err := v.ReadFile(path.Join(dkmsTree, module, version, "build", "make.log"))
		log := string(data)
		first := kmod.FirstError(log)
		if err != nil || first == "" {
			continue
		}
		for _, kernel := range kernels {
			if strings.Contains(log, kernel) {
				t.Err = kmod.BuildLesson(v, module, version, kernel, first, t.Err)
			}
		}
	}
}

// compilerErrors returns the first error in the log of each module that DKMS has built in this
// version. Undo removes the log with the package.
func compilerErrors(v host.View, version string) (errs []string) {
	for _, module := range packages.ListOf(v, dkmsTree) {
		log, err := v.ReadFile(path.Join(dkmsTree, module, version, "build", "make.log"))
		if err == nil {
			errs = append(errs, kmod.FirstError(string(log)))
		}
	}
	return errs
}

// archiveErrors returns what dpkg says of the packages that it could not unpack, such as "trying to
// overwrite '/usr/bin/x', which is also in package y". dpkg leaves those as they were.
// Source: print_error_perpackage in dpkg, src/common/force.c and lib/dpkg/ehandle.c.
func archiveErrors(stderr string) (said []string) {
	const archive = "dpkg: error processing archive "
	lines := packages.Lines(stderr)
	for i, line := range lines {
		name, isError := strings.CutPrefix(line, archive)
		if !isError || i+1 == len(lines) {
			continue
		}
		name, _, _ = strings.Cut(name, " ")
		said = append(said, path.Base(name)+": "+strings.TrimSpace(lines[i+1]))
	}

	return said
}

// scriptOutput returns what a package's script wrote, and dpkg's own words after it. Scripts write
// to either stream. dpkg names the architecture, too, of a package that may be installed for
// several: pkg_name with pnaw_nonambig in dpkg, src/main/configure.c.
func scriptOutput(name, native, out, stderr string) (said []string) {
	for _, called := range []string{name, name + ":" + native} {
		_, after, found := strings.Cut(out, "Setting up "+called+" ")
		if found {
			lines := packages.Lines(after)
			said = append(said, lines[1:min(6, len(lines))]...)
		}
	}

	const dpkgsWords = "dpkg: error processing"
	before, after, _ := strings.Cut(stderr, dpkgsWords)
	said = append(said, packages.Tail(before, 6)...)
	if after != "" {
		lines := packages.Lines(dpkgsWords + after)
		said = append(said, lines[:min(2, len(lines))]...)
	}
	return said
}
