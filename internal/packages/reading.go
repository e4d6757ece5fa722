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
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Reading is the packager's database as last read, for all who share it: it is read again once it has changed.
type Reading struct {
	packagers []Packager

	mu    sync.Mutex
	of    []identity
	found map[string]State
	reads int

	digests map[identity]LockFile // of files of mirrors
}

// NewReading returns a reading for a program that knows these packagers.
func NewReading(packagers ...Packager) *Reading { return &Reading{packagers: packagers} }

// packager returns the packager of the machine.
func (r *Reading) packager(v host.View) (Packager, error) {
	if p := r.named(Detect(v)); p != nil {
		return p, nil
	}
	return nil, &trouble.Error{
		What: "cannot read installed packages: this machine has no packaging system that gpuadm knows",
		Try:  []string{"say owner = \"other\" in the spec, if another tool installs the driver"},
	}
}

// named returns the packager of a name; nil if there is none.
func (r *Reading) named(name string) Packager {
	for _, p := range r.packagers {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// identity tells one state of a file from another: a packager replaces its files, or writes them, which both show here.
type identity struct {
	name  string
	size  int64
	ctime time.Time
}

// Read returns the states of all packages, from memory while the database is the same.
func (r *Reading) Read(ctx context.Context, v host.View) (map[string]State, error) {
	m, err := r.packager(v)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	of, err := identities(v, m.Files())
	if err != nil {
		return nil, err
	}
	if r.found != nil && slices.Equal(of, r.of) {
		return r.found, nil
	}
	v = view.Machine(v) // the reading is kept for longer than a snapshot, which may have read a file before it was asked what it is
	if of, err = identities(v, m.Files()); err != nil {
		return nil, err
	}
	found, err := m.Installed(ctx, v)
	if err != nil {
		return nil, err
	}
	r.of, r.found, r.reads = of, found, r.reads+1
	return found, nil
}

// identities are those of files; a missing file has none.
func identities(v host.View, names []string) (all []identity, err error) {
	for _, name := range names {
		id := identity{name: name}
		if i, err := v.Stat(name); err == nil {
			id.size, id.ctime = i.Size, i.Ctime
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		all = append(all, id)
	}
	return all, nil
}

// last returns what the last reading found.
func (r *Reading) last() (found map[string]State, edition int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found, r.reads
}

// Meets says whether packages are installed as wanted.
func (r *Reading) Meets(ctx context.Context, v host.View, want map[string]State) (bool, error) {
	all, err := r.Read(ctx, v)
	for name, wanted := range want {
		if err == nil && !all[name].meets(wanted) {
			return false, nil
		}
	}
	return true, err
}

// Forget has the database read again: a coarse clock may stamp two writes alike.
func (r *Reading) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = nil
}

// A Description is what identifies an installed package for other programs.
type Description struct {
	Name    string // without the architecture
	Version string // as the packager writes it, epoch and revision included
	Arch    string
	SHA256  string // of its file, as the signed list of its source says; "" where no list says it
}

// Describe describes those of the packages that are installed, by the names that gpuadm has for them. packager is its name.
func (r *Reading) Describe(ctx context.Context, v host.View, names []string) (packager string, all map[string]Description, err error) {
	m, err := r.packager(v)
	if err != nil {
		return "", nil, err
	}
	all, err = m.Describe(ctx, v, names)
	return m.Name(), all, err
}
