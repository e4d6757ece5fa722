// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Store is the folder for copies of packages that get replaced.
const Store = converge.Home + "/packages"

// MakeStore makes Store if it is missing. Only root may write there, since gpuadm installs from it.
func MakeStore(h host.Host) error {
	for _, dir := range []string{converge.Home, Store} {
		_, err := h.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = h.Mkdir(dir, host.Attr{Mode: 0o700})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// InStore reports whether Store has all versions that changes need. A rollback then depends neither
// on a repository that may have dropped a version, nor on the network.
func InStore(v host.View, p Packager, changes []converge.Change) bool {
	return !slices.ContainsFunc(Due(changes), func(c converge.Change) bool {
		return installs(c) && p.Stored(v, c.Name, Parse(c.After).Version) == ""
	})
}

// Prune removes from Store the packages whose versions none of the changes names, and that are not
// installed either: a package that no source has any more could not be rolled back by the next
// apply. needed are the changes that undo may still revert. A file that is not named like a package
// stays.
func (r *Reading) Prune(ctx context.Context, h host.Host, needed []converge.Change) error {
	var files []string
	for _, name := range ListOf(h, Store) {
		if path.Ext(name) == ".deb" || path.Ext(name) == ".rpm" {
			files = append(files, path.Join(Store, name))
		}
	}

	if len(files) == 0 {
		return nil
	}

	packager, err := r.packager(h)
	if err != nil {
		return err
	}
	keep := storedFor(h, packager, needed)
	files = slices.DeleteFunc(files, func(file string) bool { return keep[file] })
	if len(files) == 0 {
		return nil
	}

	all, err := r.Read(ctx, h)
	if err != nil {
		return err
	}
	for name, found := range all {
		if found.Installed() {
			keep[packager.Stored(h, name, found.Version)] = true
		}
	}

	for _, file := range files {
		if keep[file] {
			continue
		}
		if err := h.Remove(file); err != nil {
			return err
		}
	}

	return nil
}

// storedFor returns the files in Store with the versions before and after changes, as a set.
func storedFor(v host.View, p Packager, changes []converge.Change) map[string]bool {
	files := map[string]bool{}
	for _, c := range changes {
		if c.Kind != packageKind {
			continue
		}
		for _, state := range []State{Parse(c.Before), Parse(c.After)} {
			if state.Version != "" {
				files[p.Stored(v, c.Name, state.Version)] = true
			}
		}
	}

	return files
}
