// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"slices"
	"sync"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// Moment is what systemd and its folders said to one snapshot.
type Moment struct {
	folders func(*files.Files) []listedFolder
	units   sync.Map // by name: func() (Unit, error)
}

type momentKey struct{}

// In has the units that are asked for under a context be those of the moment.
func (m *Moment) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, momentKey{}, m)
}

func NewMoment(list func(folder string) ([]string, error)) *Moment {
	var once sync.Once
	var found []listedFolder
	return &Moment{folders: func(f *files.Files) []listedFolder {
		once.Do(func() { found = unitsOf(f, list).folders })
		return found
	}}
}

// unitFiles are those of a machine; a snapshot lists its folders once.
func (s *Manager) unitFiles(ctx context.Context) unitFiles {
	if m, ok := ctx.Value(momentKey{}).(*Moment); ok {
		return unitFiles{s.files, m.folders(s.files)}
	}
	return unitsOf(s.files, s.files.ReadDir)
}

// Unit describes a unit, as systemd says, or said to the same snapshot.
func (s *Manager) Unit(ctx context.Context, name string) (host.Unit, error) {
	m, ok := ctx.Value(momentKey{}).(*Moment)
	if !ok {
		return s.read(ctx, name)
	}
	said, _ := m.units.LoadOrStore(name, sync.OnceValues(func() (host.Unit, error) { return s.read(ctx, name) }))
	u, err := said.(func() (host.Unit, error))()
	u.Files = slices.Clone(u.Files)
	return u, err
}
