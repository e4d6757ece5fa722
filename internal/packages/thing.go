// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// thing is one package by its name.
type thing struct {
	set *Set
	pkg string
}

// New builds the thing from its name, for undo. The things of one run share a reading of the
// packager's database: after a transaction it is read once for all.
func New(name string, database *Reading) converge.Thing {
	return thing{NewSet(database), name}
}

// Want wants a package in a version, which may be open, with the hold and the mark of to. A wanted
// package is not automatic, unless to says so.
func Want(set *Set, name string, to State, why string) converge.Want {
	set.wanted[name] = to
	spared := slices.Contains(set.AsFound, name)
	return converge.Want{Thing: thing{set, name}, Why: why, AsFound: spared, To: func(found converge.State) (converge.State, error) {
		if spared && !Parse(found).Installed() {
			return found, nil
		}
		return set.to(name, Parse(found), to)
	}}
}

// to returns the desired state of a package in the state found.
func (s *Set) to(name string, found, wanted State) (converge.State, error) {
	group, pattern, isOpen := wanted.open()
	switch _, _, open := found.open(); {
	case open, isOpen && pattern == "*" && !wanted.Held && found.Installed() && found.Broken == "":
		return found.String(), nil // any version will do, with any automatic mark
	case found.meets(wanted) && !(isOpen && s.split(group)):
		held := found.Held
		found = found.marked(wanted)
		found.Held = held || wanted.Held // another tool's hold is no harm if gpuadm wants one anyway
		return found.String(), nil
	}
	wanted.Held = wanted.Held || found.Held
	return wanted.String(), nil
}

// Guards requires an operator's permission to change a package that another tool holds, also one
// held as not installed.
func (t thing) Guards(found, left, after converge.State) (allow, who string) {
	is, was, to := Parse(found), Parse(left), Parse(after)
	switch same := is.Version == to.Version && is.Installed() == to.Installed(); {
	case !is.Held || same || was.Held && was.Version == is.Version:
		return "", ""
	case !is.Installed():
		return "change-held", t.pkg + " is held as not installed"
	}
	return "change-held", t.pkg + " is held at " + is.Version
}

func (t thing) Ref() converge.Ref { return converge.Ref{Kind: "package", Name: t.pkg} }

func (t thing) Look(ctx context.Context, v host.View) (converge.State, error) {
	all, err := t.set.Read(ctx, v)
	if err != nil {
		return "", err
	}
	return all[t.pkg].String(), nil
}

func (t thing) Make(ctx context.Context, h host.Host, to converge.State) error {
	found, err := t.Look(ctx, h)
	if err != nil {
		return err
	}
	return t.MakeAll(ctx, h, []converge.Change{{Ref: t.Ref(), Before: found, After: to}})
}

// MakeAll makes all changes in one transaction.
func (t thing) MakeAll(ctx context.Context, h host.Host, changes []converge.Change) error {
	m, err := t.set.packager(h)
	if err != nil {
		return err
	}
	defer t.set.Forget()
	if err := refresh(ctx, h, m, changes); err != nil {
		return err
	}
	return m.Transact(ctx, h, changes)
}

// refresh reads the lists again if gpuadm's files about repositories have changed since and Store
// lacks a version: a rollback restores these files first. If no list can be read, the transaction
// reports what is missing.
func refresh(ctx context.Context, h host.Host, m Packager, changes []converge.Change) error {
	if !slices.ContainsFunc(Due(changes), func(c converge.Change) bool {
		after := Parse(c.After)
		return after.Installed() && after.Version != Parse(c.Before).Version && m.Stored(h, c.Name, after.Version) == ""
	}) {
		return nil
	}
	files := append(gpuadmFiles(h, "/etc/apt/sources.list.d"), gpuadmFiles(h, "/etc/yum.repos.d")...)
	old, err := m.Stale(h, files)
	if err == nil && old {
		if failed := m.Update(ctx, h, files); failed != nil {
			converge.Say(ctx, converge.Unkept, failed.Error())
		}
	}
	return err
}

// Lacks returns the changes to versions that neither a repository nor Store has: undo refuses them.
func (t thing) Lacks(ctx context.Context, v host.View, pending []converge.Change) ([]converge.Change, error) {
	m, err := t.set.packager(v)
	if err != nil {
		return nil, err
	}
	r := Resolution{Changes: slices.Clone(pending), Solver: m.Available()}
	for i, c := range pending {
		r.Changes[i].Before, r.Changes[i].After, r.Changes[i].Lost = c.After, c.Before, ""
	}
	again, err := r.Solver.Offers(ctx, v, r.Replaced())
	r.Lost(again, func(name, version string) bool { return m.Stored(v, name, version) != "" })
	return slices.DeleteFunc(r.Changes, func(c converge.Change) bool { return c.Lost == "" }), err
}

// TakeOut reverts gpuadm's change of a package whose marks have changed since, or that a
// transaction left incomplete: the package has one of the change's two versions. Marks that were
// set or cleared outside gpuadm stay, and so does any other version.
func (t thing) TakeOut(_ host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	is, was, made := Parse(found), Parse(before), Parse(after)
	half := is.Broken != "" && is.Version == Nowhere // unpacked for the first time, and incomplete
	switch {
	case half || is.Version == was.Version || is.Version == made.Version:
	case before == after:
		return found, nil, nil
	default:
		return found, []string{fmt.Sprintf("package %s is %q, gpuadm had made it %q", t.pkg, found, after)}, nil
	}
	if !was.Installed() {
		return before, nil, nil
	}
	if is.Held != made.Held {
		was.Held = is.Held
	}
	if is.Auto != made.Auto {
		was.Auto = is.Auto
	}
	return was.String(), nil, nil
}

// Resolve chooses the open versions and adds the dependencies. A package whose version meets the
// spec stays, so a converged machine asks no packager.
func (t thing) Resolve(ctx context.Context, v host.View, pending []converge.Change) ([]converge.Change, error) {
	var converged, due []converge.Change
	for _, c := range pending {
		before, after := Parse(c.Before), Parse(c.After)
		group, _, isOpen := after.open()
		switch {
		case isOpen && before.meets(after) && !t.set.split(group):
			c.After = before.marked(after).String()
		case after.Version == removed && !before.Installed():
			c.After = c.Before
		}
		if c.After == c.Before {
			converged = append(converged, c)
		} else {
			due = append(due, c)
		}
	}
	if len(due) == 0 {
		return converged, nil
	}
	if err := t.set.ready(ctx, v); err != nil {
		return nil, err
	}
	m, err := t.set.packager(v)
	if err != nil {
		return nil, err
	}
	all, err := t.set.Read(ctx, v)
	if err != nil {
		return nil, err
	}
	found, err := m.Resolve(ctx, v, Request{due, t.set.versions(all, due), t.set.Family, t.set.IfThere, t.set.Stream})
	if err == nil {
		err = brings(ctx, v, m, found)
	}
	converged = slices.DeleteFunc(converged, func(c converge.Change) bool { // the others may need it in another revision
		return slices.ContainsFunc(found, func(o converge.Change) bool { return o.Name == c.Name })
	})
	return slices.Concat(converged, found), t.set.advised(err)
}

// brings fills in the kernel modules that changes install or remove: from the catalog for packages
// asked for, from the files of installed packages. A change of marks has none.
func brings(ctx context.Context, v host.View, m Packager, changes []converge.Change) error {
	var ask []string
	for i, c := range changes {
		switch before := Parse(c.Before); {
		case before.Version == Parse(c.After).Version && before.Broken == "":
			changes[i].Brings = nil
		case len(c.Brings) == 0 && before.Installed():
			ask = append(ask, c.Name)
		}
	}
	if len(ask) == 0 {
		return nil
	}
	files, err := m.FilesOf(ctx, v, ask)
	for i, c := range changes {
		if len(c.Brings) == 0 {
			changes[i].Brings = modulesIn(files[c.Name])
		}
	}
	return err
}

// modulesIn names NVIDIA's kernel modules among files, and those that DKMS builds from them:
// dkms(8) has the sources of nvidia 580.95.05 in /usr/src/nvidia-580.95.05. All modules of the
// driver count as nvidia, since they are loaded with it.
func modulesIn(files []string) (modules []string) {
	for _, file := range files {
		name := path.Base(file)
		if name == "dkms.conf" && strings.HasPrefix(file, "/usr/src/") {
			name = path.Base(path.Dir(file))
		} else if !strings.Contains(file, "/lib/modules/") || !strings.Contains(name, ".ko") {
			continue
		}
		switch {
		case !strings.HasPrefix(name, "nvidia"):
			continue
		case strings.HasPrefix(name, storage):
			name = storage
		default:
			name = "nvidia"
		}
		if !slices.Contains(modules, name) {
			modules = append(modules, name)
		}
	}
	return modules
}

const storage = "nvidia-fs" // GPUDirect Storage's module, which has versions of its own

// State is the state of one package. Its text is "VERSION[ held][ auto][ BROKEN]"; the zero State,
// "", is not installed.
//
// A wanted version may be open: "GROUP=PATTERN", where PATTERN is a driver's or toolkit's own
// version ("580.95.05"), or the beginning of a version and ".*" ("580.*"), or "*". All members of a
// group get the same own version, the newest for which each has a candidate. "removed" is an open
// state too: the packager decides what remains of the package (its configuration, or nothing).
// Resolve replaces open states by exact ones.
type State struct {
	Version string // as the packager writes it, epoch and revision included: 3:580.95.05-1.el9, 580.95.05-0ubuntu1
	Held    bool   // held by apt-mark, locked by dnf versionlock
	Auto    bool   // installed as a dependency; apt only: dnf has its own record
	Broken  string // "", half-configured, half-installed, unpacked, triggers-awaited, …: dpkg's words; config-files: removed
}

const (
	removed     = "removed"      // as a Version: to be removed, whatever remains
	Nowhere     = "-"            // as a Version: not installed, but held so
	ConfigFiles = "config-files" // as Broken: removed, its configuration remains
)

// Parse reads what String wrote.
func Parse(s converge.State) State {
	var st State
	for i, w := range strings.Fields(string(s)) {
		switch {
		case i == 0:
			st.Version = w
		case w == "held":
			st.Held = true
		case w == "auto":
			st.Auto = true
		default:
			st.Broken = w
		}
	}
	return st
}

func (s State) String() converge.State {
	out := s.Version
	if s.Held {
		out += " held"
	}
	if s.Auto {
		out += " auto"
	}
	if s.Broken != "" {
		out += " " + s.Broken
	}
	return converge.State(out)
}

// Installed says whether the package is installed, even if broken.
func (s State) Installed() bool {
	return s.Version != "" && s.Version != Nowhere && s.Version != removed && s.Broken != ConfigFiles
}

// open returns the group and pattern of an open version.
func (s State) open() (group, pattern string, ok bool) {
	group, pattern, ok = strings.Cut(s.Version, "=")
	return group, pattern, ok
}

// meets says whether a package in state s has the version that the other state asks for, and is
// wholly installed.
func (s State) meets(wanted State) bool {
	if !s.Installed() || s.Broken != "" {
		return false
	}
	if _, pattern, ok := wanted.open(); ok {
		return Matches(pattern, s.Version)
	}
	return s.Version == wanted.Version
}

// marked returns s with the marks of the other.
func (s State) marked(as State) State {
	s.Held, s.Auto = as.Held, as.Auto
	return s
}

// Own returns a package's own version, that is the version of the driver or toolkit in it, without
// the packager's epoch and revision. 3:580.95.05-1.el9 and 580.95.05-0ubuntu1 are both 580.95.05.
func Own(version string) string {
	version = Unepoched(version)
	if i := strings.LastIndexByte(version, '-'); i >= 0 {
		version = version[:i]
	}
	return version
}

// Unepoched returns a version without its epoch.
func Unepoched(version string) string { return version[strings.IndexByte(version, ':')+1:] }

// Matches says whether a package's version has the own version that a pattern asks for.
func Matches(pattern, version string) bool {
	own := Own(version)
	if pattern == "*" {
		return true
	}
	if start, ok := strings.CutSuffix(pattern, ".*"); ok {
		return own == start || strings.HasPrefix(own, start+".")
	}
	return own == pattern
}
