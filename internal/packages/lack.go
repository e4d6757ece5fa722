// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// dnfConf may have sections about repositories, too: dnf.conf(5).
const dnfConf = "/etc/dnf/dnf.conf"

// OurFiles begins the names of gpuadm's files about sources.
const OurFiles = "gpuadm-"

// SourceFolders returns the folders with the machine's files about sources.
func SourceFolders() []string {
	return []string{
		"/etc/apt/sources.list", "/etc/apt/sources.list.d/",
		"/etc/yum.repos.d/", dnfConf, "/etc/yum/vars/", "/etc/dnf/vars/",
	}
}

// A System has a distribution's os-release, its architecture and the contents of its files about
// sources: see SourceFolders.
type System struct {
	ID, Version string
	Arch        string // amd64, arm64
	Files       map[string][]byte
}

// FilesIn returns the names of other tools' files in a folder that have one of the ends.
func FilesIn(s System, folder string, ends ...string) (names []string) {
	for name := range s.Files {
		ours := strings.HasPrefix(path.Base(name), OurFiles)
		if path.Dir(name) == folder && slices.Contains(ends, path.Ext(name)) && !ours {
			names = append(names, name)
		}
	}

	slices.Sort(names)
	return names
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

func (l Lack) Why() string { return "the driver's packages depend on " + l.Name }

// Enabled wants the lacks enabled by gpuadm's files and the distribution's packages; undo removes
// all of these. packager is facts.Packager's name.
func (r *Reading) Enabled(packager string, lacks []Lack) ([]converge.Want, error) {
	p := r.Named(packager)
	var wants []converge.Want
	for _, l := range lacks {
		if err := l.Unavailable(); err != nil {
			return nil, err
		}
		switch {
		case l.File != "":
			wants = append(wants, things.Exact(l.File, l.Data, 0o644, l.Why()))
		case p != nil:
			wants = append(wants, p.Enabled(r, l)...)
		}
	}

	files := EnabledBy(lacks)
	if p == nil || len(files) == 0 {
		return nil, nil
	}
	return append(wants, Lists(p, files)), nil
}

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
