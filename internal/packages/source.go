// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"maps"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// FormSource is the form of our files that say where packages come from.
const FormSource = "source"

// source is such a file. Before it changes, the packages that are held are fetched to Store: the next source may not have their versions,
// and roll-back and undo need them.
type source struct {
	*things.FileThing
	read *Reading
}

// NewSource builds a file about a repository again.
func NewSource(name string, read *Reading) converge.Thing {
	return source{things.NewFile(name, nil).Formed(FormSource), read}
}

// Source wants a file about a repository.
func Source(name string, data []byte, read *Reading, why string) converge.Want {
	w := things.Exact(name, data, 0o644, why)
	w.Thing = source{w.Thing.(*things.FileThing).Formed(FormSource), read}
	return w
}

func (s source) Make(ctx context.Context, h host.Host, to converge.State) error {
	if _, err := h.Lstat(s.Ref().Name); err == nil && h.Runs() {
		if err := s.read.keep(ctx, h); err != nil {
			return err
		}
	}
	return s.FileThing.Make(ctx, h, to)
}

// keep keeps what is held. What cannot be kept it names, and goes on: a repository that does not answer must not hold a machine in what
// broke it.
func (r *Reading) keep(ctx context.Context, h host.Host) error {
	p, err := r.packager(h)
	if err != nil {
		return err
	}
	all, err := r.Read(ctx, h)
	if err != nil {
		return err
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].Held && all[name].Installed() {
			names = append(names, name)
		}
	}
	return unkept(ctx, h, p, names, all, p.Keep(ctx, h, names))
}
