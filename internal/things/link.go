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
type link string

// Link wants a symbolic link that says target. A file or folder in its place is not ours to replace.
func Link(name, target, why string) converge.Want {
	return converge.Want{Thing: link(name), Why: why, To: func(converge.State) (converge.State, error) {
		return converge.State(target), nil
	}}
}

// NewLink names a link, for undo.
func NewLink(name string) converge.Thing { return link(name) }

func (l link) Kind() string { return "link" }
func (l link) Name() string { return string(l) }

func (l link) Look(_ context.Context, v host.View) (converge.State, error) {
	info, err := v.Lstat(string(l))
	if missing(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if info.Mode&fs.ModeSymlink == 0 {
		return "", fmt.Errorf("cannot make %s a link: %s lies there", string(l), host.TypeName(info.Mode))
	}
	to, err := v.Readlink(string(l))
	return converge.State(to), err
}

func (l link) Make(_ context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return h.Remove(string(l))
	}
	return h.Symlink(string(l), string(to))
}
