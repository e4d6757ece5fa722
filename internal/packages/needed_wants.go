// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Enabled wants what lacks to be enabled, by files of ours and the distribution's packages; all of it goes with undo. manager is
// what Detect returned.
func Enabled(database *Reading, manager string, lacks []Lack) (wants []converge.Want, err error) {
	for _, l := range lacks {
		if err := l.Unavailable(); err != nil {
			return nil, err
		}
		why := "the driver's packages depend on " + l.Name
		if l.File != "" {
			wants = append(wants, things.Exact(l.File, l.Data, 0o644, why))
		}
		if l.Release == nil {
			continue
		}
		w := Want(NewSet().Sharing(database), l.Release.Package, State{Version: l.Release.Package + "=*"}, why)
		if to := w.To; l.Enabled { // by what may be another's file of that name
			w.AsFound = true
			w.To = func(found converge.State) (converge.State, error) {
				if !Parse(found).Installed() {
					return found, nil
				}
				return to(found)
			}
		}
		wants = append(wants, w)
		if l.Release.Key != "" { // else dnf imports it with the first package, and it stays
			wants = append(wants, importedKey(database, l.Release.Key, l.Release.Key, "rpm checks packages with it"))
		}
	}
	if files := EnabledBy(lacks); len(files) > 0 {
		wants = append(wants, Lists(manager, files, manager+" knows what the repositories hold"))
	}
	return wants, nil
}

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
	t := (*converge.Trouble)(nil)
	if busy := (*locked)(nil); len(s.try) == 0 || !errors.As(err, &t) || errors.As(err, &busy) {
		return err
	}
	with := *t
	with.Try = slices.Concat(s.try, t.Try)
	return &with
}
