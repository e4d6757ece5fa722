// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// secret is a file to be removed whose bytes are never stored, shown or hashed in full: a token, a signing key.
// Its state is "MODE UID:GID #CHECK"; CHECK is 16 bits of a digest, enough to notice another file in its place, and far too
// little to guess a secret by. It cannot be restored.
type secret struct {
	name string
	last *lastLook
}

// NewSecret names a secret file.
func NewSecret(name string) converge.Thing { return secret{name, &lastLook{}} }

func (f secret) Ref() converge.Ref { return converge.Ref{Kind: "secret", Name: f.name} }

func (f secret) Look(_ context.Context, v host.View) (converge.State, error) {
	return f.last.keep(f.look(v))
}

func (f secret) look(v host.View) (converge.State, error) {
	info, err := v.Lstat(f.name)
	if host.NotExist(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if !info.Mode.IsRegular() {
		return "", fmt.Errorf("cannot use %s for a secret: it is %s", f.name, host.TypeName(info.Mode))
	}
	data, err := v.ReadFile(f.name)
	if err != nil {
		return "", err
	}
	a := info.Attr()
	return f.state(a.Mode, a.UID, a.GID, data), nil
}

func (f secret) state(mode fs.FileMode, uid, gid int, data []byte) converge.State {
	sum := sha256.Sum256(append([]byte(f.name+"\x00"), data...))
	return converge.State(fmt.Sprintf("%s %d:%d #%x", modeText(mode), uid, gid, sum[:2]))
}

func (f secret) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != "" {
		return converge.Stays{Why: "secrets are not stored, so an earlier one cannot be restored"}
	}
	was, err := f.last.found(ctx, h, f)
	if err != nil {
		return err
	}
	return f.last.replace(h, f.name, nil, func(found *host.Entry) bool {
		if found == nil {
			return was == ""
		}
		a := found.Attr
		return found.Link == "" && f.state(a.Mode, a.UID, a.GID, found.Data) == was
	})
}
