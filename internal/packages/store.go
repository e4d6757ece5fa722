// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Prune removes from Store the packages whose versions none of the changes names, and that are not
// installed either: a package that no source has any more could not be rolled back by the next
// apply. needed are the changes that undo may still revert. A file that is not named like a package
// stays.
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

// ListOf returns the names in a folder, none if it is missing.
func ListOf(v host.View, dir string) []string {
	names, _ := v.ReadDir(dir)
	return names
}

// ReadAll reads the files that exist. If it cannot read one it continues, and also returns an
// error.
func ReadAll[T any](v host.View, files []string, parse func(file string, data []byte) []T) (all []T, err error) {
	for _, file := range files {
		data, failed := v.ReadFile(file)
		if failed == nil {
			all = append(all, parse(file, data)...)
		} else if !errors.Is(failed, fs.ErrNotExist) {
			err = cmp.Or(err, failed)
		}
	}
	return all, err
}

// Store is the folder for copies of packages that get replaced.
const Store = converge.Home + "/packages"

// Folder makes Store if it is missing. Only root may write there, since gpuadm installs from it.
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

// InStore says whether Store has all versions that changes need. A rollback then depends neither on
// a repository that may have dropped a version, nor on the network.
func InStore(v host.View, p Packager, changes []converge.Change) bool {
	return !slices.ContainsFunc(Due(changes), func(c converge.Change) bool {
		to := Parse(c.After)
		return to.Installed() && to.Version != Parse(c.Before).Version && p.Stored(v, c.Name, to.Version) == ""
	})
}

// Lost marks replaced packages whose version is no longer available: neither from an offer, as a
// rollback would ask, nor as a file in Store. If one of the packages asked for cannot be restored,
// none is; they do not need their earlier dependencies.
func (r *Resolution) Lost(again map[string][]Offer, file func(name, version string) bool) {
	whole := ""
	for i, c := range r.Changes {
		before, after := Parse(c.Before), Parse(c.After)
		if !before.Installed() || before.Version == after.Version && after.Installed() && before.Broken == "" {
			continue
		}
		why := ""
		if _, offered := Find(again[c.Name], before.Version); before.Broken != "" {
			why = fmt.Sprintf("%s was %s, and is not installed so again", c.Name, before.Broken)
		} else if !offered && !file(c.Name, before.Version) {
			why = fmt.Sprintf("no %s has %s %s any more", r.Solver.Words().Source, c.Name, before.Version)
		}
		if r.Changes[i].Lost = cmp.Or(why, c.Lost); why != "" && before.Broken == "" && !c.Dependency {
			whole = why
		}
	}
	for i, c := range r.Changes {
		if whole != "" && c.Lost == "" {
			r.Changes[i].Lost = whole
		}
	}
}

// Replaced names the packages whose installed version gets replaced.
func (r *Resolution) Replaced() (names []string) {
	for _, c := range r.Changes {
		if before := Parse(c.Before); before.Installed() && before.Version != Parse(c.After).Version {
			names = append(names, c.Name)
		}
	}
	return names
}

// Unkept warns of packages that get replaced without a copy in Store. The transaction continues,
// and so would a rollback: a repository that does not answer must not stop a repair. err is the
// fetch's error; Unkept returns it only if the run was stopped. It does not name packages that the
// plan has marked as lost, nor broken ones.
func (r *Resolution) Unkept(ctx context.Context, h host.Host, err error) error {
	names := r.Replaced()
	for _, c := range r.Changes {
		if before := Parse(c.Before); before.Broken != "" && before.Broken != ConfigFiles {
			return ctx.Err()
		} else if c.Lost != "" {
			names = slices.DeleteFunc(names, func(name string) bool { return name == c.Name })
		}
	}
	return unkept(ctx, h, r.Solver, names, r.Installed, err)
}

func unkept(ctx context.Context, h host.Host, p Packager, names []string, all map[string]State, err error) error {
	if ctx.Err() != nil {
		return err
	}
	var lost []string
	for _, name := range names {
		if p.Stored(h, name, all[name].Version) == "" {
			lost = append(lost, name+" "+all[name].Version)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	const most = 3
	what, cause := strings.Join(lost[:min(len(lost), most)], ", "), "no repository has that version"
	if len(lost) > most {
		what += fmt.Sprintf(" and %d more", len(lost)-most)
	}
	if err != nil {
		cause = strings.TrimPrefix(err.Error(), Cannot)
		if t := (*trouble.Error)(nil); errors.As(err, &t) && len(t.Because) > 0 {
			cause += ": " + t.Because[0]
		}
	}
	converge.Say(ctx, converge.Unkept, "cannot keep "+what+": "+cause+"; to install it again gpuadm will need a repository that has it")
	return nil
}
