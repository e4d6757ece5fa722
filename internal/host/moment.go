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

func newMoment(list func(folder string) ([]string, error)) *moment {
	var once sync.Once
	var found []listedFolder
	return &moment{folders: func(f *Files) []listedFolder {
		once.Do(func() { found = f.units(list).folders })
		return found
	}}
}

// unitFiles are those of a machine; a snapshot lists its folders once.
func (s *systemd) unitFiles(ctx context.Context) unitFiles {
	if m, ok := ctx.Value(momentKey{}).(*moment); ok {
		return unitFiles{s.files, m.folders(s.files)}
	}
	return s.files.units(s.files.ReadDir)
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
