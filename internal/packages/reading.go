// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Reading is the packager's database as last read, for whoever shares it: it is read again once it has changed.
type Reading struct {
	mu    sync.Mutex
	of    []identity
	found map[string]State
	reads int
}

// identity tells one state of a file from another: a packager replaces its files, or writes them, which both show here.
type identity struct {
	name  string
	size  int64
	ctime time.Time
}

// read returns how all packages stand, from memory while the database is the same.
func (r *Reading) read(ctx context.Context, v host.View) (map[string]State, error) {
	m, err := managerOf(v)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
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
	if r.found != nil && slices.Equal(of, r.of) {
		return r.found, nil
	}
	found, err := m.installed(ctx, v)
	if err != nil {
		return nil, err
	}
	r.of, r.found, r.reads = of, found, r.reads+1
	return found, nil
}

// last returns what the last reading found.
func (r *Reading) last() (found map[string]State, edition int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found, r.reads
}

// Meets says whether packages are installed as they are wanted.
func (r *Reading) Meets(ctx context.Context, v host.View, want map[string]State) (bool, error) {
	all, err := r.read(ctx, v)
	for name, wanted := range want {
		if err == nil && !all[name].meets(wanted) {
			return false, nil
		}
	}
	return true, err
}

// forget has the database read again: a coarse clock may stamp two writes alike.
func (r *Reading) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = nil
}
