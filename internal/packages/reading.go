// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Reading is a shared reading of the packager's database: it is read again only after the database
// has changed.
type Reading struct {
	packagers []Packager

	mu    sync.Mutex
	files []identity // of the database, when it was read
	found map[string]State
	reads int

	digests sync.Map // LockFile, by identity: of files of mirrors
}

// NewReading returns a reading for a program that knows these packagers.
func NewReading(packagers ...Packager) *Reading { return &Reading{packagers: packagers} }

// packager returns the packager of the machine.
func (r *Reading) packager(v host.View) (Packager, error) {
	name := facts.PackagerOf(v).Name
	if p := r.Named(name); p != nil {
		return p, nil
	}
	return nil, Unmanaged("read installed", name)
}

// Unmanaged refuses work with packages on a machine whose packager gpuadm does not install with:
// name, or "" if none is known.
func Unmanaged(verb, name string) error {
	packager := cmp.Or(name, "no packager that gpuadm knows")
	return &trouble.Error{
		What: "cannot " + verb + " packages: " + packager + " manages this machine, and gpuadm installs by apt and dnf",
		Try:  []string{`set owner = "other" in [driver], and leave [toolkit] out, where another tool installs them`},
	}
}

// Named returns the packager of a name; nil if there is none.
func (r *Reading) Named(name string) Packager {
	for _, p := range r.packagers {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// Read returns the states of all packages, from memory while the database is unchanged.
func (r *Reading) Read(ctx context.Context, v host.View) (map[string]State, error) {
	packager, err := r.packager(v)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	files, err := identities(v, packager.Files())
	if err != nil {
		return nil, err
	}
	if r.found != nil && slices.Equal(files, r.files) {
		return r.found, nil
	}

	// The reading outlives a snapshot, which may have read a file before its identity was asked
	// for.
	v = view.Machine(v)
	files, err = identities(v, packager.Files())
	if err != nil {
		return nil, err
	}
	found, err := packager.Installed(ctx, v)
	if err != nil {
		return nil, err
	}
	r.files = files
	r.found = found
	r.reads++
	return found, nil
}

// last returns what the last reading found.
func (r *Reading) last() (found map[string]State, edition int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found, r.reads
}

// Meets reports whether packages are installed as wanted.
func (r *Reading) Meets(ctx context.Context, v host.View, want map[string]State) (bool, error) {
	all, err := r.Read(ctx, v)
	if err != nil {
		return true, err
	}
	for name, wanted := range want {
		if !all[name].meets(wanted) {
			return false, nil
		}
	}

	return true, nil
}

// Listed returns the installed packages of a driver's version that list a file, by the file. A
// library is asked for by its name alone: its folder is the distribution's. The file may be gone:
// another process has removed it.
func (r *Reading) Listed(
	ctx context.Context, v host.View, version string, files []string,
) (map[string]string, error) {
	all, err := r.Read(ctx, v)
	if err != nil {
		return nil, err
	}
	packager, err := r.packager(v)
	if err != nil {
		return nil, err
	}

	var names []string
	for name, state := range all {
		if state.Installed() && Own(state.Version) == version {
			names = append(names, name)
		}
	}

	slices.Sort(names)
	lists, err := packager.FilesOf(ctx, v, names)
	if err != nil {
		return nil, err
	}

	listed := map[string]string{}
	for _, name := range names {
		for _, file := range lists[name] {
			for _, asked := range files {
				if file == asked || path.Base(file) == asked {
					listed[asked] = name
				}
			}
		}
	}

	return listed, nil
}

// Reinstall is the command that unpacks installed packages again, held ones too.
func (r *Reading) Reinstall(v host.View, names []string) string {
	packages := strings.Join(names, " ")
	if facts.PackagerOf(v).Name == "dnf" {
		return "sudo dnf reinstall " + packages
	}
	return "sudo apt-get install --reinstall --allow-change-held-packages " + packages
}

// Forget makes the next Read read the database: with a coarse clock two writes may have the same
// time.
func (r *Reading) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = nil
}

// identity distinguishes the versions of a file: it changes when a packager replaces the file or
// writes to it.
type identity struct {
	name  string
	size  int64
	ctime time.Time
}

// identities returns the identity of each file; a missing file has the zero identity.
func identities(v host.View, names []string) (all []identity, err error) {
	for _, name := range names {
		id := identity{name: name}
		info, err := v.Stat(name)
		switch {
		case err == nil:
			id.size = info.Size
			id.ctime = info.Ctime
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}

		all = append(all, id)
	}
	return all, nil
}

// ListOf returns the names in a folder, none if it is missing.
func ListOf(v host.View, dir string) []string {
	names, _ := v.ReadDir(dir)
	return names
}

// ReadAll reads the files that exist. If it cannot read one it continues, and also returns an
// error.
func ReadAll[T any](
	v host.View,
	files []string,
	parse func(file string, data []byte) []T,
) (all []T, err error) {
	for _, file := range files {
		data, failed := v.ReadFile(file)
		switch {
		case failed == nil:
			all = append(all, parse(file, data)...)
		case !errors.Is(failed, fs.ErrNotExist):
			err = cmp.Or(err, failed)
		}
	}
	return all, err
}
