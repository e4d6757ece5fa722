// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Set is what all packages that a stage wants share: one reading of the packager's database, and who belongs together.
type Set struct {
	wanted map[string]State
	reads  []string          // files that the packager's lists are made from: see Lists
	hold   map[string][]byte // what those files shall hold, as far as that is said
	stream string            // of dnf's module nvidia-driver: see InStream

	mu    sync.Mutex
	of    []identity
	found map[string]State
}

// NewSet returns a set for the packages of one stage. reads are our files that the packager's lists are made from, as
// given to Lists: while lists are to be read anew, nobody can say what is to be had.
func NewSet(reads ...string) *Set { return &Set{wanted: map[string]State{}, reads: reads} }

// Holding says what the files that lists are made from shall hold: until they do, the lists are to be read anew.
func (s *Set) Holding(files map[string][]byte) *Set {
	s.hold = files
	return s
}

// identity tells one state of a file from another: a packager replaces its files, or writes them, which both show here.
type identity struct {
	name  string
	size  int64
	ctime time.Time
}

// read returns how all packages stand, from memory while the database is the same.
func (s *Set) read(ctx context.Context, v host.View) (map[string]State, error) {
	m, err := managerOf(v)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var of []identity
	for _, name := range m.database() {
		id := identity{name: name}
		if i, err := v.Stat(name); err == nil {
			id.size, id.ctime = i.Size, i.Ctime
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		of = append(of, id)
	}
	if s.found != nil && slices.Equal(of, s.of) {
		return s.found, nil
	}
	found, err := m.installed(ctx, v)
	if err != nil {
		return nil, err
	}
	s.of, s.found = of, found
	return found, nil
}

// forget has the database read again: a coarse clock may stamp two writes alike.
func (s *Set) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = nil
}

// ready says whether the packager can be asked what is to be had.
func (s *Set) ready(ctx context.Context, v host.View) error {
	if len(s.reads) == 0 {
		return nil
	}
	for _, name := range s.reads {
		if _, err := v.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return host.Later{Until: "once the package lists are read"}
		}
		if shall, said := s.hold[name]; said {
			if is, err := v.ReadFile(name); err != nil || !bytes.Equal(is, shall) {
				return errors.Join(err, host.Later{Until: "once the package lists are read"})
			}
		}
	}
	l, err := lists{Detect(v), s.reads}.Look(ctx, v)
	if err == nil && l == stale {
		err = host.Later{Until: "once the package lists are read"}
	}
	return err
}

// stands says which own version the members of each group have that are not among the changes.
func (s *Set) stands(all map[string]State, changes []converge.Change) map[string]string {
	own := map[string]string{}
	for name, wanted := range s.wanted {
		among := slices.ContainsFunc(changes, func(c converge.Change) bool { return c.Name == name })
		if group, _, ok := wanted.open(); ok && !among && all[name].meets(wanted) {
			own[group] = Own(all[name].Version)
		}
	}
	return own
}

// split says whether the members of a group that are installed had several versions of their own when last looked at:
// each may be one that is asked for, and still they do not fit together.
func (s *Set) split(group string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := ""
	for name, wanted := range s.wanted {
		g, _, ok := wanted.open()
		if found := s.found[name]; ok && g == group && found.Installed() {
			own := Own(found.Version)
			if first != "" && own != first {
				return true
			}
			first = own
		}
	}
	return false
}
