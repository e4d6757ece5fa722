// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"slices"
	"sync"
)

// moment is what systemd and its folders said under one context.
type moment struct {
	folders func(*Files) []string
	units   sync.Map // by name: func() (Unit, error)
}

type momentKey struct{}

// Moment makes a context under which a unit is asked for once, however many facts and things want to know. It is for what changes
// nothing and waits for nothing: under it a unit stays what it was.
func Moment(ctx context.Context) context.Context {
	if ctx.Value(momentKey{}) != nil {
		return ctx
	}
	m := &moment{}
	var once sync.Once
	var found []string
	m.folders = func(f *Files) []string {
		once.Do(func() { found = f.units().folders })
		return found
	}
	return context.WithValue(ctx, momentKey{}, m)
}

// unitFiles are those of a machine; under a moment its folders are looked for once.
func (s *systemd) unitFiles(ctx context.Context) unitFiles {
	if m, ok := ctx.Value(momentKey{}).(*moment); ok {
		return unitFiles{s.files, m.folders(s.files)}
	}
	return s.files.units()
}

// unit describes a unit, as systemd says, or said under the same moment.
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
