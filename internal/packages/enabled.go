// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

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
