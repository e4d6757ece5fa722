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

// FormSource is the form of gpuadm's files about sources.
const FormSource = "source"

// source is such a file. Before it changes, gpuadm fetches the held packages to Store: the next
// source may not have their versions, which rollback and undo need.
type source struct {
	*things.FileThing
	read *Reading
}

// NewSource builds a file about a repository, for undo.
func NewSource(name string, read *Reading) converge.Thing {
	return source{things.NewFile(name, nil).Formed(FormSource), read}
}

// Source wants a file about a repository.
func Source(name string, data []byte, read *Reading, why string) converge.Want {
	want := things.Exact(name, data, 0o644, why)
	file := want.Thing.(*things.FileThing)
	want.Thing = source{file.Formed(FormSource), read}
	return want
}

func (s source) Make(ctx context.Context, h host.Host, to converge.State) error {
	_, err := h.Lstat(s.Ref().Name)
	if err == nil && h.Runs() {
		if err := s.read.keep(ctx, h); err != nil {
			return err
		}
	}

	return s.FileThing.Make(ctx, h, to)
}

// keep fetches the held packages to Store. It names those that it cannot fetch, and continues: a
// repository that does not answer must not keep a machine in the broken state.
func (r *Reading) keep(ctx context.Context, h host.Host) error {
	packager, err := r.packager(h)
	if err != nil {
		return err
	}
	all, err := r.Read(ctx, h)
	if err != nil {
		return err
	}

	var held []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].Held && all[name].Installed() {
			held = append(held, name)
		}
	}

	return unkept(ctx, h, packager, held, all, packager.Keep(ctx, h, held))
}
