// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"context"
	"fmt"
	"os"
)

// gpgKey is a key pair, in a home of gpg's own.
type gpgKey struct{ home string }

// newKey makes a key pair that has no end: repositories lie in the cache for long. gpg's agent listens on a socket in its
// home, which must have a short path: so it is in the temporary folder. drop ends the agent and forgets the key.
func newKey(ctx context.Context, owner string) (key gpgKey, drop func(), err error) {
	home, err := os.MkdirTemp("", "gpuadm-key-")
	if err != nil {
		return gpgKey{}, nil, fmt.Errorf("cannot make a key's folder: %w", err)
	}
	key = gpgKey{home}
	drop = func() {
		_, _ = command(context.WithoutCancel(ctx), "", "gpgconf", "--homedir", home, "--kill", "all")
		_ = os.RemoveAll(home)
	}
	if _, err := key.gpg(ctx, "--passphrase", "", "--quick-gen-key", owner+" <lab@example.invalid>", "rsa3072", "sign", "never"); err != nil {
		drop()
		return gpgKey{}, nil, err
	}
	return key, drop, nil
}

func (k gpgKey) gpg(ctx context.Context, args ...string) ([]byte, error) {
	return command(ctx, "", "gpg", append([]string{"--homedir", k.home, "--batch", "--yes", "--quiet"}, args...)...)
}

// publish writes the public key in both forms.
func (k gpgKey) publish(ctx context.Context, armored, binary string) error {
	if _, err := k.gpg(ctx, "--armor", "--output", armored, "--export"); err != nil {
		return err
	}
	_, err := k.gpg(ctx, "--output", binary, "--export")
	return err
}
