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

// secret is a file whose bytes are never stored, shown or hashed in full: a token, a bootstrap kubeconfig.
// Its state is "MODE UID:GID #CHECK"; CHECK is 16 bits of a digest, enough to tell ours from another, and far too
// little to guess a secret by. It is made or removed, never restored, and another's is never overwritten.
type secret struct {
	name string
	data []byte // nil when built again for undo: it can be removed, not made
	last *lastLook
}

// Secret wants a file with these secret bytes, mode 0600, owned by root.
func Secret(name string, data []byte, why string) converge.Want {
	f := secret{name, data, &lastLook{}}
	return converge.Want{Thing: f, Why: why, To: func(found converge.State) (converge.State, error) {
		want := f.state(0o600, 0, 0, data)
		if found != "" && found != want {
			return "", fmt.Errorf("cannot write %s: a file that is not ours lies there; move it away first", name)
		}
		return want, nil
	}}
}

// NewSecret names a secret file, for undo.
func NewSecret(name string) converge.Thing { return secret{name: name, last: &lastLook{}} }

func (f secret) Kind() string { return "secret" }
func (f secret) Name() string { return f.name }

func (f secret) Look(_ context.Context, v host.View) (converge.State, error) {
	return f.last.keep(f.look(v))
}

func (f secret) look(v host.View) (converge.State, error) {
	info, err := v.Lstat(f.name)
	if missing(err) {
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
	if to != "" && (f.data == nil || f.state(0o600, 0, 0, f.data) != to) {
		return converge.Stays{Why: "secrets are not stored, so an earlier one cannot be restored"}
	}
	was, err := f.last.found(ctx, h, f)
	if err != nil {
		return err
	}
	var with *host.Entry
	if to != "" {
		with = &host.Entry{Data: f.data, Attr: host.Attr{Mode: 0o600}}
	}
	return f.last.replace(h, f.name, with, func(found *host.Entry) bool {
		if found == nil {
			return was == ""
		}
		a := found.Attr
		return found.Link == "" && f.state(a.Mode, a.UID, a.GID, found.Data) == was
	})
}

// Prove refuses what chattr(1) keeps from being written.
func (f secret) Prove(_ context.Context, v host.View, _, after converge.State) error {
	return writable(v, f.name, false, after)
}
