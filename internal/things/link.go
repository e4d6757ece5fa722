// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// link is a symbolic link itself, not what it leads to. Its state is what the link says.
type link struct {
	name string
	last lastLook
}

// Link wants a symbolic link that says target. A file or folder in its place is not ours to replace.
func Link(name, target, why string) converge.Want {
	return converge.Want{Thing: NewLink(name), Why: why, To: func(converge.State) (converge.State, error) {
		return converge.State(target), nil
	}}
}

// NewLink names a link, for undo.
func NewLink(name string) converge.Thing { return &link{name: name} }

func (l *link) Kind() string { return "link" }
func (l *link) Name() string { return l.name }

func (l *link) Look(_ context.Context, v host.View) (converge.State, error) {
	return l.last.keep(l.look(v))
}

func (l *link) look(v host.View) (converge.State, error) {
	info, err := v.Lstat(l.name)
	if missing(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if info.Mode&fs.ModeSymlink == 0 {
		return "", fmt.Errorf("cannot make %s a link: %s lies there", l.name, host.TypeName(info.Mode))
	}
	to, err := v.Readlink(l.name)
	return converge.State(to), err
}

func (l *link) Make(ctx context.Context, h host.Host, to converge.State) error {
	was, err := l.last.found(ctx, h, l)
	if err != nil {
		return err
	}
	var with *host.Entry
	if to != "" {
		with = &host.Entry{Link: string(to)}
	}
	return l.last.replace(h, l.name, with, func(found *host.Entry) bool {
		if found == nil {
			return was == ""
		}
		return found.Link != "" && found.Link == string(was)
	})
}

// Prove refuses what chattr(1) keeps from being made: the link's folder is immutable.
func (l *link) Prove(_ context.Context, v host.View, _, after converge.State) error {
	return writable(v, l.name, false, after)
}
