// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gpgKey is a key pair, in a home of gpg's own.
type gpgKey struct{ home string }

// newKey makes a key pair that does not expire: repositories stay in the cache for long. gpg's
// agent listens on a socket in its home, which must have a short path: so it is in the temporary
// folder. drop ends the agent and forgets the key.
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

	_, err = key.gpg(ctx, "--passphrase", "", "--quick-gen-key", owner+" <lab@example.invalid>", "rsa3072", "sign", "never")
	if err != nil {
		drop()
		return gpgKey{}, nil, err
	}
	return key, drop, nil
}

func (k gpgKey) gpg(ctx context.Context, args ...string) ([]byte, error) {
	argv := append([]string{"--homedir", k.home, "--batch", "--yes", "--quiet"}, args...)
	return command(ctx, "", "gpg", argv...)
}

// publish writes the public key in both forms.
func (k gpgKey) publish(ctx context.Context, armored, binary string) error {
	if _, err := k.gpg(ctx, "--armor", "--output", armored, "--export"); err != nil {
		return err
	}
	_, err := k.gpg(ctx, "--output", binary, "--export")
	return err
}

// keyNames are the files that NVIDIA has the public key in, beside the repositories that it signs.
func keyNames() []string {
	list := []string{
		"libnvidia-container/gpgkey",
		CUDA + "/ubuntu2604/x86_64/60DF8A40.pub",
		CUDA + "/debian12/x86_64/8793F200.pub",
		CUDA + "/rhel10/x86_64/CDF6BA43.pub",
	}
	for _, distro := range []string{"debian12", "ubuntu2204", "ubuntu2404"} {
		list = append(list, CUDA+"/"+distro+"/x86_64/3bf863cc.pub")
	}
	for _, distro := range []string{"rhel8", "rhel9", "amzn2023", "azl3"} {
		list = append(list, CUDA+"/"+distro+"/x86_64/D42D0685.pub")
	}
	return list
}

// publishKey links the public key to where NVIDIA has it, in all variants below a folder which have
// these repositories.
func publishKey(into string, variants []Variant) error {
	for _, variant := range variants {
		for _, name := range keyNames() {
			place := filepath.Join(into, string(variant), name)
			if _, err := os.Stat(filepath.Dir(place)); err != nil {
				continue // the variants of other distributions do not have this repository
			}
			if err := os.Link(filepath.Join(into, "key.asc"), place); err != nil {
				return fmt.Errorf("cannot publish the key: %w", err)
			}
		}
	}
	return nil
}

// Fingerprint is that of the key which signs the repositories of a folder: 40 hexadecimal digits.
func Fingerprint(t testing.TB, dir string) string {
	t.Helper()
	key := filepath.Join(dir, "key.asc")
	out, err := command(t.Context(), "", "gpg",
		"--batch", "--no-options", "--homedir", t.TempDir(),
		"--show-keys", "--with-colons", key)
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(line, ":") // doc/DETAILS in gnupg's tree
		if fields[0] == "fpr" {
			return fields[9]
		}
	}

	t.Fatalf("cannot tell the fingerprint of the key in %s: %v", dir, err)
	return ""
}
