// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Collect removes from our folder the packages, and what dkms has built of them, whose versions no change names that undo
// may still put back. What has no name of a package's file is not ours to judge, and stays.
func (thing) Collect(ctx context.Context, h host.Host, needed []converge.Change) error {
	versions := map[string]bool{} // NAME_VERSION, as builds are named
	keep := map[string]bool{}     // files
	for _, c := range needed {
		for _, state := range []State{Parse(c.Before), Parse(c.After)} {
			if state.Version == "" {
				continue
			}
			versions[c.Name+"_"+state.Version] = true
			keep[stored(h, c.Name, state.Version)] = true
			keep[storedRPM(h, c.Name, state.Version)] = true
		}
	}
	var errs []error
	for _, name := range listOf(h, Store) {
		file := path.Join(Store, name)
		if ext := path.Ext(name); (ext == ".deb" || ext == ".rpm") && !keep[file] {
			errs = append(errs, h.Remove(file))
		}
	}
	for _, name := range listOf(h, builds) {
		dir := path.Join(builds, name)
		for _, build := range listOf(h, dir) {
			// One with this end was cut off, or is at work: then the package is named.
			if !versions[name] || strings.HasSuffix(build, ".part") {
				errs = append(errs, removeFolder(h, path.Join(dir, build)))
			}
		}
		if !versions[name] {
			errs = append(errs, h.Remove(dir))
		}
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}

// removeFolder removes a folder of files.
func removeFolder(h host.Host, dir string) error {
	for _, name := range listOf(h, dir) {
		if err := h.Remove(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return h.Remove(dir)
}
