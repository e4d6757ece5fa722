// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// A Repository is a source of packages beside the distribution's own.
type Repository struct {
	ID          string // cuda, nvidia-container-toolkit: it is part of the names of gpuadm's files
	About       string // NVIDIA's CUDA repository for debian12
	URL         string // http, https or file; a flat apt repository, or a dnf one; "" for the distribution's own, with Pins only
	Key         string // URL or absolute path of the public key
	Fingerprint string // of the key; or "sha256:" and the digest of its file: see things.Key
	Pins        []Pin  // which packages apt may install from it, and in which version
	Signed      Signed // what of a dnf repository the key signs
	Mixed       bool   // its owner chose its packages: it may have kernel headers too
	Whole       bool   // gpuadm mirror wrote it: it has all that its packages depend on, and no module streams
}

// Signed says what a repository's key signs. No value says "nothing".
type Signed string

// NVIDIA signs both in its CUDA repositories (SIGNATURES.md in NVIDIA/cuda-repo-management), and
// only the metadata in the container toolkit's (its own .repo file says gpgcheck=0,
// repo_gpgcheck=1), which holds the packages' checksums.
const (
	SignedBoth     Signed = "" // packages and metadata; apt's always sign the metadata, and so all
	SignedMetadata Signed = "metadata"
	SignedPackages Signed = "packages" // for mirrors that write their own metadata
)

// SignedAs reads the spec's value; auto replaces an empty value.
func SignedAs(said string, auto Signed) Signed {
	switch said {
	case "both":
		return SignedBoth
	case string(SignedMetadata), string(SignedPackages):
		return Signed(said)
	}
	return auto
}

// A Pin is a record of apt_preferences(5).
type Pin struct {
	Names    []string
	Version  string // that it keeps the packages at: 580.95.05, or the beginning of a version and ".*": 580.*; "" for none
	Pin      string // version 580.95.05-*, release o=Ubuntu
	Priority int
}

// KeepAt keeps packages at a version with any revision, above 1000 so that a downgrade is made too.
// A pin fails open when the version is gone, so it is only a second safeguard: gpuadm installs
// exact versions, and holds them.
func KeepAt(version string, names ...string) Pin {
	return Pin{Names: names, Version: version, Pin: "version " + glob(version), Priority: 1001}
}

// Repositories wants the machine to know these repositories, to trust the key of each for that
// repository alone, and to have current lists. packager is facts.Packager's name.
func (r *Reading) Repositories(packager string, repos []Repository, via host.Via) ([]converge.Want, error) {
	p := r.Named(packager)
	if p == nil && len(repos) > 0 {
		return nil, Unmanaged("install", packager)
	} else if p == nil {
		return nil, nil
	}
	return p.Repositories(r, repos, via)
}

// Contents returns gpuadm's files about sources and, for apt, versions: if a version is new in the
// spec, it may be newer than the last reading of the lists.
func (r *Reading) Contents(packager string, repos []Repository, via host.Via) map[string][]byte {
	if p := r.Named(packager); p != nil {
		return p.Contents(repos, via)
	}
	return nil
}

// Upgrades wants automatic upgrades to leave these packages alone.
func (r *Reading) Upgrades(packager string, names []string, needrestart bool) []converge.Want {
	if p := r.Named(packager); p != nil {
		return p.Upgrades(names, needrestart)
	}
	return nil
}

const Header = "# Written by gpuadm at each apply.\n"

func Records(pins []Pin) (text string) {
	for _, p := range pins {
		text += fmt.Sprintf("\nPackage: %s\nPin: %s\nPin-Priority: %d\n", strings.Join(p.Names, " "), p.Pin, p.Priority)
	}
	return text
}

// glob returns a pattern for a driver's version with any revision of the packager: 580.95.05-1,
// 580.95.05-0ubuntu1.
func glob(version string) string {
	if strings.HasSuffix(version, "*") {
		return version
	}
	return version + "-*"
}

// FormSource is the form of gpuadm's files about sources.
const FormSource = "source"

// source is such a file. Before it changes, gpuadm fetches the held packages to Store: the next
// source may not have their versions, which rollback and undo need.
type source struct {
	*things.FileThing
	read *Reading
}

// NewSource builds a file about a repository, for undo.
func NewSource(name string, read *Reading) converge.Thing {
	return source{things.NewFile(name, nil).Formed(FormSource), read}
}

// Source wants a file about a repository.
func Source(name string, data []byte, read *Reading, why string) converge.Want {
	w := things.Exact(name, data, 0o644, why)
	w.Thing = source{w.Thing.(*things.FileThing).Formed(FormSource), read}
	return w
}

func (s source) Make(ctx context.Context, h host.Host, to converge.State) error {
	if _, err := h.Lstat(s.Ref().Name); err == nil && h.Runs() {
		if err := s.read.keep(ctx, h); err != nil {
			return err
		}
	}
	return s.FileThing.Make(ctx, h, to)
}

// keep fetches the held packages to Store. It names those that it cannot fetch, and continues: a
// repository that does not answer must not keep a machine in the broken state.
func (r *Reading) keep(ctx context.Context, h host.Host) error {
	p, err := r.packager(h)
	if err != nil {
		return err
	}
	all, err := r.Read(ctx, h)
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return !all[name].Held || !all[name].Installed() })
	return unkept(ctx, h, p, names, all, p.Keep(ctx, h, names))
}

// FormDeclared is the form of other tools' files about sources, in which gpuadm disables the
// repositories that its own files declare: with two keys for one repository apt refuses to read any
// list, and dnf may use either entry.
const FormDeclared = "declared"

// The marks begin lines of other tools: a disabled line, and a line that the next line replaces.
// apt and dnf allow such comments within an entry: sources.list(5), dnf.conf(5).
const (
	disabledMark = "# gpuadm disabled:"
	replacedMark = "# gpuadm replaced:"
)

// Disabled returns a line as a comment.
func Disabled(line string) string { return disabledMark + " " + line }

// DisabledAll returns an entry as comments.
func DisabledAll(entry string) string {
	var out strings.Builder
	for line := range strings.Lines(entry) {
		if t := strings.TrimSpace(line); t != "" && t[0] != '#' {
			line = Disabled(line)
		}
		out.WriteString(line)
	}
	return out.String()
}

// Instead returns a line that replaces another, or none.
func Instead(line, of string) string {
	return replacedMark + " " + strings.TrimSuffix(of, "\n") + "\n" + line + "\n"
}

// Declared wants other tools' declarations of the repositories disabled: gpuadm's own name the key
// by its fingerprint.
func (r *Reading) Declared(packager string, repos []Repository, sys System) (wants []converge.Want) {
	p := r.Named(packager)
	repos = slices.DeleteFunc(slices.Clone(repos), func(r Repository) bool { return r.URL == "" })
	if p == nil || len(repos) == 0 {
		return nil
	}
	for _, file := range slices.Concat([]string{"/etc/apt/sources.list", dnfConf}, FilesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources"), FilesIn(sys, "/etc/yum.repos.d", ".repo")) {
		edit := func(data []byte) ([]byte, error) {
			if data == nil {
				return nil, nil
			}
			return p.Disable(file, EnabledAgain(data), repos, sys), nil
		}
		if out, _ := edit(sys.Files[file]); bytes.Equal(out, EnabledAgain(sys.Files[file])) {
			continue
		}
		w := things.Edited(NewDeclared(file), edit, "gpuadm's own file declares the same repository, and its key by fingerprint")
		wants = append(wants, w)
	}
	return wants
}

// NewDeclared builds such a file, for undo.
func NewDeclared(name string) *things.FileThing {
	return things.NewFile(name, enableIn).Formed(FormDeclared)
}

// enableIn removes gpuadm's marks from a file, whatever else was changed in it since.
func enableIn(_, _, found []byte) (rest []byte, left []string, err error) {
	if found == nil {
		return nil, nil, errors.New("internal error: a file that is not there has no marks")
	}
	return EnabledAgain(found), nil, nil
}

// EnabledAgain returns a file without gpuadm's marks.
func EnabledAgain(data []byte) []byte {
	var out []byte
	skip := false
	for line := range strings.Lines(string(data)) {
		was, replaced := strings.CutPrefix(line, replacedMark)
		is, disabled := strings.CutPrefix(line, disabledMark)
		switch {
		case replaced:
			if strings.TrimSpace(was) != "" {
				out = append(out, strings.TrimPrefix(was, " ")...)
			}
		case disabled:
			out = append(out, strings.TrimPrefix(is, " ")...)
		case !skip:
			out = append(out, line...)
		}
		skip = replaced
	}
	return out
}

// lists are the packager's package lists. They are a Follower: the packager reads them again after
// gpuadm's files about repositories have changed. Their states are "fresh" and "stale"; without a
// configured repository nothing is read, so they are fresh.
type lists struct {
	of    Packager // nil where the program does not know it
	name  string   // apt, dnf
	files []string // gpuadm's files about repositories
}

const (
	fresh = converge.State("fresh")
	stale = converge.State("stale")
)

// Lists wants the packager's lists to match gpuadm's files about repositories.
func Lists(of Packager, files []string) converge.Want {
	l, why := lists{of, of.Name(), files}, of.Name()+" knows what the repositories hold"
	return converge.Want{Thing: l, Why: why, To: func(found converge.State) (converge.State, error) { return l.Current(found), nil }}
}

// NewLists builds the thing for undo.
func NewLists(name string, files []string, read *Reading) converge.Thing {
	return lists{read.Named(name), name, files}
}

// Ref names them by the package manager: "apt".
func (l lists) Ref() converge.Ref {
	return converge.Ref{Kind: "package-lists", Name: l.name, Reads: l.files}
}

// Look defers the lists in a root folder outside bake, since reading them runs the packager.
func (l lists) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Runs() {
		return "", host.FirstBoot
	}
	if l.of == nil {
		return "", fmt.Errorf("internal error: no lists of %q are known", l.name)
	}
	old, err := l.of.Stale(v, l.files)
	if err != nil {
		return "", err
	}
	if old {
		return stale, nil
	}
	return fresh, nil
}

func (l lists) Make(ctx context.Context, h host.Host, to converge.State) error {
	if found, err := l.Look(ctx, h); to != fresh || err != nil || found == fresh {
		return err
	}
	return l.of.Update(ctx, h, l.files)
}

// Affected says that a change to a file about a repository makes the lists stale; its removal does
// not.
func (l lists) Affected(found converge.State, by converge.Change) converge.State {
	if found != "" && by.After == "" && by.Deferred == "" {
		return found
	}
	if slices.Contains(l.files, by.Name) || l.of != nil && l.of.Affects(l.files, by) {
		return stale
	}
	return found
}

// Supplies says that the versions of packages depend on the lists.
func (lists) Supplies() {}

// Current returns the desired state: fresh.
func (l lists) Current(converge.State) converge.State { return fresh }

// TouchList gives a file a new ctime: it changes the file's attributes and changes them again,
// since setting equal attributes does nothing. The modification time stays: packagers ask the
// server for lists newer than that.
func TouchList(h host.Host, name string) error {
	i, err := h.Stat(name)
	if err != nil {
		return err
	}
	for _, mode := range []fs.FileMode{i.Mode.Perm() ^ 0o100, i.Mode.Perm() &^ 0o100} {
		attr := i.Attr()
		attr.Mode = mode
		if err := h.SetAttr(name, attr); err != nil {
			return err
		}
	}
	return nil
}
