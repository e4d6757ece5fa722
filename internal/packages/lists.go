// SPDX-FileCopyrightText: The gpuadm authors
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

// lists are the packager's own of what repositories hold. They are a Follower: once gpuadm's files about repositories have
// changed, they are read again. Their states are "fresh" and "stale"; a repository that is not configured is not read, so fresh.
type lists struct {
	of    Packager // nil where the program does not know it
	name  string   // apt, dnf
	files []string // ours, about repositories
}

const (
	fresh = converge.State("fresh")
	stale = converge.State("stale")
)

// Lists wants the packager's lists to be those of our files about repositories.
func Lists(of Packager, files []string) converge.Want {
	l, why := lists{of, of.Name(), files}, of.Name()+" knows what the repositories hold"
	return converge.Want{Thing: l, Why: why, To: func(found converge.State) (converge.State, error) { return l.Current(found), nil }}
}

// NewLists builds the thing again.
func NewLists(name string, files []string, read *Reading) converge.Thing {
	return lists{read.named(name), name, files}
}

// Ref names them by the package manager: "apt".
func (l lists) Ref() converge.Ref {
	return converge.Ref{Kind: "package-lists", Name: l.name, Reads: l.files}
}

// Look defers lists of a root folder that is not baked: reading them runs the packager.
func (l lists) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Runs() {
		return "", host.FirstBoot
	}
	if l.of == nil {
		return "", fmt.Errorf("internal error: no lists of %q are known", l.name)
	}
	old, err := l.of.Stale(v, l.files)
	if err != nil {
		return "", err
	}
	if old {
		return stale, nil
	}
	return fresh, nil
}

func (l lists) Make(ctx context.Context, h host.Host, to converge.State) error {
	if found, err := l.Look(ctx, h); to != fresh || err != nil || found == fresh {
		return err
	}
	return l.of.Update(ctx, h, l.files)
}

// Affected says that a change to a file about a repository makes the lists stale, but not its going away.
func (l lists) Affected(found converge.State, by converge.Change) converge.State {
	if found != "" && by.After == "" && by.Deferred == "" {
		return found
	}
	if slices.Contains(l.files, by.Name) || l.of != nil && l.of.Affects(l.files, by) {
		return stale
	}
	return found
}

// Supplies says that packages come from what the lists say.
func (lists) Supplies() {}

// Current says that lists are to be fresh.
func (l lists) Current(converge.State) converge.State { return fresh }

// TouchList gives a file another ctime: attributes there and back, since those that are as they should be are left alone. Its
// own time stays: packagers ask the server for what is newer than that.
func TouchList(h host.Host, name string) error {
	i, err := h.Stat(name)
	if err != nil {
		return err
	}
	for _, mode := range []fs.FileMode{i.Mode.Perm() ^ 0o100, i.Mode.Perm()} {
		attr := i.Attr()
		attr.Mode = mode
		if err := h.SetAttr(name, attr); err != nil {
			return err
		}
	}
	return nil
}
