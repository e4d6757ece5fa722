// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// lists are the packager's package lists. They are a Follower: the packager reads them again after
// gpuadm's files about repositories have changed. Their states are "fresh" and "stale"; without a
// configured repository nothing is read, so they are fresh.
type lists struct {
	packager Packager // nil if gpuadm does not know the package manager
	name     string   // its name: apt, dnf
	files    []string // gpuadm's files about repositories
}

const (
	fresh = converge.State("fresh")
	stale = converge.State("stale")
)

// Lists wants the packager's lists to match gpuadm's files about repositories.
func Lists(packager Packager, files []string) converge.Want {
	l := lists{packager, packager.Name(), files}
	return converge.Want{
		Thing: l,
		Why:   packager.Name() + " knows what the repositories hold",
		To:    func(found converge.State) (converge.State, error) { return l.Current(found), nil },
	}
}

// NewLists builds the thing for undo.
func NewLists(name string, files []string, read *Reading) converge.Thing {
	return lists{read.Named(name), name, files}
}

// Ref names them by the package manager: "apt".
func (l lists) Ref() converge.Ref {
	return converge.Ref{Kind: "package-lists", Name: l.name, Reads: l.files}
}

// Look defers the lists in a root folder outside bake, since reading them runs the packager.
func (l lists) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Runs() {
		return "", host.FirstBoot
	}
	if l.packager == nil {
		return "", fmt.Errorf("internal error: no lists of %q are known", l.name)
	}

	isStale, err := l.packager.Stale(v, l.files)
	if err != nil {
		return "", err
	}
	if isStale {
		return stale, nil
	}
	return fresh, nil
}

func (l lists) Make(ctx context.Context, h host.Host, to converge.State) error {
	found, err := l.Look(ctx, h)
	if err != nil || to != fresh || found == fresh {
		return err
	}
	return l.packager.Update(ctx, h, l.files)
}

// Affected returns stale after a change to a file about a repository; the removal of such a file
// makes no list stale. A change whose states are not known yet is not a removal.
func (l lists) Affected(found converge.State, by converge.Change) converge.State {
	isRemoval := by.Before != "" && by.After == ""
	isOwnFile := slices.Contains(l.files, by.Name)
	switch {
	case found != "" && isRemoval:
		return found
	case isOwnFile, l.packager != nil && l.packager.Affects(l.files, by):
		return stale
	}
	return found
}

// Supplies marks the lists as a converge.Supplier: the versions of packages depend on them.
func (lists) Supplies() {}

// Current returns the desired state: fresh.
func (l lists) Current(converge.State) converge.State { return fresh }

// TouchList gives a file a new ctime: it changes the file's attributes and changes them again,
// since setting equal attributes does nothing. The modification time stays: packagers ask the
// server for lists newer than that.
func TouchList(h host.Host, name string) error {
	info, err := h.Stat(name)
	if err != nil {
		return err
	}

	const ownerExecutes = 0o100
	mode := info.Mode.Perm()
	flipped := mode ^ ownerExecutes
	plain := mode &^ ownerExecutes
	for _, next := range []fs.FileMode{flipped, plain} {
		attr := info.Attr()
		attr.Mode = next
		if err := h.SetAttr(name, attr); err != nil {
			return err
		}
	}

	return nil
}
