// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Prune removes from our folder the packages whose versions none of the changes names, and that are not installed either: a
// package that no source has any more would have no way back from the next apply. needed is what undo may still put back. What
// has no name of a package's file is not ours to judge, and stays.
func Prune(ctx context.Context, h host.Host, needed []converge.Change) error {
	keep := map[string]bool{} // files
	for _, c := range needed {
		for _, state := range []State{Parse(c.Before), Parse(c.After)} {
			if c.Kind == (thing{}).Kind() && state.Version != "" {
				keep[stored(h, c.Name, state.Version)] = true
				keep[storedRPM(h, c.Name, state.Version)] = true
			}
		}
	}
	var errs []error
	var unnamed []string
	for _, name := range listOf(h, Store) {
		if ext := path.Ext(name); (ext == ".deb" || ext == ".rpm") && !keep[path.Join(Store, name)] {
			unnamed = append(unnamed, name)
		}
	}
	if len(unnamed) > 0 { // else nobody is asked
		all, err := new(Reading).read(ctx, h)
		if err != nil {
			return err
		}
		for _, name := range unnamed {
			if !isInstalled(name, all) {
				errs = append(errs, h.Remove(path.Join(Store, name)))
			}
		}
	}
	return host.Join(errs...)
}

// isInstalled says whether a package's file is of the version that is installed.
func isInstalled(file string, all map[string]State) bool {
	if p, ok := rpmFile(file); ok {
		return slices.ContainsFunc(p.keys(), func(key string) bool { return all[key].Installed() && bare(all[key].Version) == bare(p.evr) })
	}
	part := strings.Split(strings.TrimSuffix(file, ".deb"), "_") // NAME_VERSION_ARCH
	if len(part) != 3 {
		return false
	}
	for _, key := range []string{part[0], part[0] + ":" + part[2]} {
		if now := all[key]; now.Installed() && now.Version == strings.ReplaceAll(part[1], "%3a", ":") {
			return true
		}
	}
	return false
}

// listOf returns the names in a folder, none if it is not there.
func listOf(v host.View, dir string) []string {
	names, _ := v.ReadDir(dir)
	return names
}
