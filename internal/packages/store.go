// SPDX-FileCopyrightText: The gpuadm authors
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

// Prune removes from Store the packages whose versions none of the changes names, and that are not installed either: a
// package that no source has any more would have no way back from the next apply. needed is what undo may still roll back.
// A file without a package's name stays.
func (r *Reading) Prune(ctx context.Context, h host.Host, needed []converge.Change) error {
	files := slices.DeleteFunc(ListOf(h, Store), func(name string) bool { return path.Ext(name) != ".deb" && path.Ext(name) != ".rpm" })
	if len(files) == 0 {
		return nil
	}
	p, err := r.packager(h)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, c := range needed {
		for _, state := range []State{Parse(c.Before), Parse(c.After)} {
			if c.Kind == (thing{}).Ref().Kind && state.Version != "" {
				keep[p.Stored(h, c.Name, state.Version)] = true
			}
		}
	}
	files = slices.DeleteFunc(files, func(name string) bool { return keep[path.Join(Store, name)] })
	if len(files) == 0 {
		return nil
	}
	all, err := r.Read(ctx, h)
	for name, found := range all {
		if found.Installed() {
			keep[p.Stored(h, name, found.Version)] = true
		}
	}
	for _, name := range files {
		if file := path.Join(Store, name); err == nil && !keep[file] {
			err = h.Remove(file)
		}
	}
	return err
}

// ListOf returns the names in a folder, none if it is not there.
func ListOf(v host.View, dir string) []string {
	names, _ := v.ReadDir(dir)
	return names
}

// Store is the folder that what gets replaced is fetched to.
const Store = converge.Home + "/packages"

// Folder makes our folder where it is missing. It is for root alone: what lies in it gets installed.
func Folder(h host.Host) error {
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
