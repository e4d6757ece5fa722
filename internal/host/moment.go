// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"slices"
	"sync"
)

// moment is what systemd and its folders said to one snapshot.
type moment struct {
	folders func(*Files) []listedFolder
	units   sync.Map // by name: func() (Unit, error)
}

type momentKey struct{}

// in has the units that are asked for under a context be those of the moment.
func (m *moment) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, momentKey{}, m)
}

func newMoment(list func(folder string) ([]string, error)) *moment {
	var once sync.Once
	var found []listedFolder
	return &moment{folders: func(f *Files) []listedFolder {
		once.Do(func() { found = unitsOf(f, list).folders })
		return found
	}}
}

// unitFiles are those of a machine; a snapshot lists its folders once.
func (s *systemd) unitFiles(ctx context.Context) unitFiles {
	if m, ok := ctx.Value(momentKey{}).(*moment); ok {
		return unitFiles{s.files, m.folders(s.files)}
	}
	return unitsOf(s.files, s.files.ReadDir)
}

// unit describes a unit, as systemd says, or said to the same snapshot.
func (s *systemd) unit(ctx context.Context, name string) (Unit, error) {
	m, ok := ctx.Value(momentKey{}).(*moment)
	if !ok {
		return s.read(ctx, name)
	}
	said, _ := m.units.LoadOrStore(name, sync.OnceValues(func() (Unit, error) { return s.read(ctx, name) }))
	u, err := said.(func() (Unit, error))()
	u.Files = slices.Clone(u.Files)
	return u, err
}
