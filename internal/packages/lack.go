// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// SourceFolders hold the files of the machine that say where packages come from.
func SourceFolders() []string {
	return []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/", "/etc/yum.repos.d/"}
}

// A System is what a distribution says of itself, its architecture (amd64, arm64) and the contents of its files about sources:
// see SourceFolders.
type System struct {
	ID, Version, Arch string
	Files             map[string][]byte
}

// A Lack is something that packages depend on and that no file of the machine enables: a repository of dnf's, or
// components of apt's archive.
type Lack struct {
	Name    string // epel; contrib, non-free
	Enabled bool   // by the distribution's package in Release, which is to stay
	Try     string // what enables it: a command, or what to edit

	File    string // a file by gpuadm that enables it as well, with Data; "" where there can be none
	Data    []byte
	Release *Release // the package that enables it as well; nil where there is none
}

// A Release is a package of the distribution that brings the file of a repository.
type Release struct{ Package, File, Key string }

// Unavailable says that a repository cannot be enabled by us; nil if it can.
func (l Lack) Unavailable() error {
	if l.File != "" || l.Release != nil {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot enable %s: the files of this machine do not say where it is, or its owner manages them", l.Name),
		Try:  []string{l.Try, "take enable_needed = true out of [driver.repo], if the driver's packages find what they depend on without it"},
	}
}

// OurFiles begins the names of our files about sources.
const OurFiles = "gpuadm-"

// FilesIn are the names of others' files in a folder that end in one of the ends.
func FilesIn(s System, folder string, ends ...string) (names []string) {
	for name := range s.Files {
		if path.Dir(name) == folder && slices.Contains(ends, path.Ext(name)) && !strings.HasPrefix(path.Base(name), OurFiles) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Enabled wants what lacks to be enabled, by our files and the distribution's packages; undo removes all of it.
// packager is what Detect returned.
func (r *Reading) Enabled(packager string, lacks []Lack) ([]converge.Want, error) {
	for _, l := range lacks {
		if err := l.Unavailable(); err != nil {
			return nil, err
		}
	}
	p, files := r.named(packager), EnabledBy(lacks)
	if p == nil || len(files) == 0 {
		return nil, nil
	}
	return append(p.Enabled(r, lacks), Lists(p, files)), nil
}

// Enabling wants our file that enables what lacks, where there is one.
func (l Lack) Enabling() []converge.Want {
	if l.File == "" {
		return nil
	}
	return []converge.Want{things.Exact(l.File, l.Data, 0o644, l.Why())}
}

func (l Lack) Why() string { return "the driver's packages depend on " + l.Name }

// EnabledBy are the files that enable what lacks: ours, and those that the distribution's packages bring.
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

// Advising has the set say what to do about what lacks, where packages are not found.
func (s *Set) Advising(lacks []Lack) *Set {
	for _, l := range lacks {
		if !l.Enabled {
			s.try = append(s.try, "enable "+l.Name+", which the driver's packages depend on: "+l.Try)
		}
	}
	return s
}

// advised adds the advice to an error about packages.
func (s *Set) advised(err error) error {
	t := (*trouble.Error)(nil)
	if busy := (*Locked)(nil); len(s.try) == 0 || !errors.As(err, &t) || errors.As(err, &busy) || errors.Is(err, ErrExcluded) {
		return err
	}
	with := *t
	with.Try = slices.Concat(s.try, t.Try)
	return &with
}

// ErrExcluded is of packages that the packager's own configuration excludes: no further repository helps.
var ErrExcluded = errors.New("excluded by the packager's configuration")
