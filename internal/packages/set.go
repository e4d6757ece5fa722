// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Set is shared by all packages that a stage wants: it has one reading of the packager's database,
// and says which packages belong together.
type Set struct {
	*Reading
	Reads   []string          // gpuadm's files that the packager makes its lists from: until they are read again, the available versions are unknown
	Hold    map[string][]byte // the content that these files must have, as far as it is known: until they have it, the lists are stale
	Stream  string            // of dnf's module nvidia-driver that the packages are in; "" where there are no streams
	Family  *Family           // that the packages are part of, which must have one version; nil: they are not
	AsFound []string          // packages that may stay in the state found
	IfThere []string          // packages to leave out if no source has them
	Lacks   []Lack            // how an operator enables those is added to errors about missing packages

	wanted map[string]State

	mu      sync.Mutex
	splits  map[string]bool // by group, for one edition of the database: a cache, since every wanted package asks
	edition int
}

// NewSet returns a set for the packages of one stage.
func NewSet(read *Reading) *Set { return &Set{Reading: read, wanted: map[string]State{}} }

// ready returns nil if the packager knows the available versions.
func (s *Set) ready(ctx context.Context, v host.View) error {
	if !v.Runs() {
		return host.FirstBoot
	}
	if len(s.Reads) == 0 {
		return nil
	}
	for _, name := range s.Reads {
		if _, err := v.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return host.Later{Until: "once the package lists are read"}
		}
		if want, known := s.Hold[name]; known {
			if is, err := v.ReadFile(name); err != nil || !bytes.Equal(is, want) {
				return host.Join(err, host.Later{Until: "once the package lists are read"})
			}
		}
	}
	l, err := NewLists(facts.PackagerOf(v).Name, s.Reads, s.Reading).Look(ctx, v)
	if err == nil && l == stale {
		err = host.Later{Until: "once the package lists are read"}
	}
	return err
}

// versions returns, by group, the own version of the members that are not among the changes.
func (s *Set) versions(all map[string]State, changes []converge.Change) map[string]string {
	own := map[string]string{}
	for name, wanted := range s.wanted {
		among := slices.ContainsFunc(changes, func(c converge.Change) bool { return c.Name == name })
		if group, _, ok := wanted.open(); ok && !among && all[name].meets(wanted) {
			own[group] = Own(all[name].Version)
		}
	}
	if s.Family != nil && own[s.Family.Group] == "" {
		own[s.Family.Group] = s.agreed(all)
	}
	return own
}

// agreed returns the version that all packages of the family share which the spec asks for, if the
// spec allows that version: then the other packages of the family follow it. "" if they do not
// agree.
func (s *Set) agreed(all map[string]State) (own string) {
	for name, wanted := range s.wanted {
		if group, _, ok := wanted.open(); !ok || group != s.Family.Group {
			continue
		}
		is := Own(all[name].Version)
		if !all[name].meets(wanted) || own != "" && own != is {
			return ""
		}
		own = is
	}
	return own
}

// split says whether the installed members of a group, with the rest of its family, had several own
// versions at the last reading, or one of the family was not wholly installed: each may meet the
// spec, and still they do not work together.
func (s *Set) split(group string) bool {
	all, edition := s.last()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.splits == nil || s.edition != edition {
		s.splits, s.edition = map[string]bool{}, edition
	}
	if _, known := s.splits[group]; !known {
		s.splits[group] = s.splitIn(group, all)
	}
	return s.splits[group]
}

func (s *Set) splitIn(group string, all map[string]State) bool {
	first := ""
	differs := func(found State) bool {
		own := Own(found.Version)
		was := first
		first = own
		return was != "" && was != own
	}
	for name, wanted := range s.wanted {
		g, _, ok := wanted.open()
		if found := all[name]; ok && g == group && found.Installed() && differs(found) {
			return true
		}
	}
	if s.Family == nil || s.Family.Group != group || first == "" {
		return false
	}
	for name, found := range all {
		if found.Installed() && s.Family.Has(name, found.Version) && (found.Broken != "" || differs(found)) {
			return true
		}
	}
	return false
}

// dnfConf may have sections about repositories, too: dnf.conf(5).
const dnfConf = "/etc/dnf/dnf.conf"

// SourceFolders returns the folders with the machine's files about sources.
func SourceFolders() []string {
	return []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/", "/etc/yum.repos.d/", dnfConf, "/etc/yum/vars/", "/etc/dnf/vars/"}
}

// A System has a distribution's os-release, its architecture (amd64, arm64) and the contents of its
// files about sources: see SourceFolders.
type System struct {
	ID, Version, Arch string
	Files             map[string][]byte
}

// A Lack is a dnf repository, or components of apt's archive, that packages depend on and that no
// file of the machine enables.
type Lack struct {
	Name    string // epel; contrib, non-free
	Enabled bool   // by the distribution's package in Release, which must stay
	Try     string // how an operator enables it: a command, or an edit

	File    string // gpuadm's file that would enable it, with Data; "" if there can be none
	Data    []byte
	Release *Release // the package that would enable it; nil if there is none
}

// A Release is a package of the distribution that installs the file of a repository.
type Release struct{ Package, File, Key string }

// Unavailable returns an error if gpuadm cannot enable the repository.
func (l Lack) Unavailable() error {
	if l.File != "" || l.Release != nil {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot enable %s: the files of this machine do not say where it is, or its owner manages them", l.Name),
		Try:  []string{l.Try, "take enable_needed = true out of [driver.repo], if the driver's packages find what they depend on without it"},
	}
}

// OurFiles begins the names of gpuadm's files about sources.
const OurFiles = "gpuadm-"

// FilesIn returns the names of other tools' files in a folder that have one of the ends.
func FilesIn(s System, folder string, ends ...string) (names []string) {
	for name := range s.Files {
		if path.Dir(name) == folder && slices.Contains(ends, path.Ext(name)) && !strings.HasPrefix(path.Base(name), OurFiles) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Enabled wants the lacks enabled by gpuadm's files and the distribution's packages; undo removes
// all of these. packager is facts.Packager's name.
func (r *Reading) Enabled(packager string, lacks []Lack) ([]converge.Want, error) {
	p, files := r.Named(packager), EnabledBy(lacks)
	var wants []converge.Want
	for _, l := range lacks {
		if err := l.Unavailable(); err != nil {
			return nil, err
		}
		if l.File != "" {
			wants = append(wants, things.Exact(l.File, l.Data, 0o644, l.Why()))
		} else if p != nil {
			wants = append(wants, p.Enabled(r, l)...)
		}
	}
	if p == nil || len(files) == 0 {
		return nil, nil
	}
	return append(wants, Lists(p, files)), nil
}

func (l Lack) Why() string { return "the driver's packages depend on " + l.Name }

// EnabledBy returns the files that enable the lacks: gpuadm's, and those that the distribution's
// packages install.
func EnabledBy(lacks []Lack) (files []string) {
	for _, l := range lacks {
		switch {
		case l.File != "":
			files = append(files, l.File)
		case l.Release != nil:
			files = append(files, l.Release.File)
		}
	}
	return files
}

// advised adds to an error about packages how an operator enables what they lack.
func (s *Set) advised(err error) error {
	t := (*trouble.Error)(nil)
	if busy := (*Locked)(nil); len(s.Lacks) == 0 || !errors.As(err, &t) || errors.As(err, &busy) || errors.Is(err, ErrExcluded) {
		return err
	}
	with := *t
	with.Try = nil
	for _, l := range s.Lacks {
		if !l.Enabled {
			with.Try = append(with.Try, "enable "+l.Name+", which the driver's packages depend on: "+l.Try)
		}
	}
	with.Try = append(with.Try, t.Try...)
	return &with
}

// ErrExcluded reports packages that the packager's own configuration excludes: another repository
// does not help.
var ErrExcluded = errors.New("excluded by the packager's configuration")
