// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// signer reads the key, or makes one. The key is outside the folder, which operators copy to nodes.
func (m Mirror) signer(h host.Host) (things.Signer, error) {
	info, err := h.Stat(m.Key)
	if err == nil && info.Mode&0o044 != 0 {
		return things.Signer{}, &trouble.Error{
			What: fmt.Sprintf("cannot sign with the key in %s: other users can read it, so any of them can sign what nodes install", m.Key),
			Try:  []string{"remove it, and have gpuadm make another; or, if no other user has used this machine: chmod 600 " + host.ShellWord(m.Key)},
		}
	}

	secret, err := h.ReadFile(m.Key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m.newSigner(h)
	case err != nil:
		return things.Signer{}, err
	}

	signer, err := things.ReadSigner(secret)
	if err != nil {
		return signer, &trouble.Error{
			What: fmt.Sprintf("cannot sign with the key in %s: %v", m.Key, err),
			Try:  []string{"name a file that gpuadm mirror wrote, or an RSA key: openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072"},
			Err:  err,
		}
	}

	return signer, nil
}

// newSigner makes a key, and keeps it for the next mirror.
func (m Mirror) newSigner(h host.Host) (things.Signer, error) {
	signer, secret, err := things.NewSigner()
	if err != nil {
		return signer, fmt.Errorf("cannot make a key: %w", err)
	}
	return signer, h.WriteFile(m.Key, secret, host.Attr{Mode: 0o600})
}
