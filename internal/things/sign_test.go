// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestSigner: GnuPG accepts the key and both signatures, finds the same fingerprint, and refuses what was changed.
func TestSigner(t *testing.T) {
	for _, program := range []string{"gpg", "gpgv"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	_, secret, err := NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ReadSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	public, err := s.Public()
	if err != nil {
		t.Fatal(err)
	}
	if found, err := Fingerprints(public, ""); err != nil || len(found) != 1 || found[0] != s.Fingerprint() {
		t.Errorf("fingerprints %v, %v; want %s", found, err, s.Fingerprint())
	}
	dir := t.TempDir()
	put := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	run := func(argv ...string) (string, error) {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		return string(out), err
	}
	home, err := os.MkdirTemp("", "gpg") // a short name: gpg's sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	shown, err := run("gpg", "--homedir", home, "--batch", "--with-colons", "--show-keys", put("key.asc", public))
	if err != nil || !bytes.Contains([]byte(shown), []byte(s.Fingerprint())) || !bytes.Contains([]byte(shown), []byte("uid:")) {
		t.Errorf("gpg shows %s, %v", shown, err)
	}
	packets, err := dearmor(public)
	if err != nil {
		t.Fatal(err)
	}
	ring := put("key.gpg", packets)

	text := []byte("Origin: test\nSHA256:\n abc 1 Packages\n")
	clear, err := s.Clearsign(text, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run("gpgv", "--keyring", ring, put("clear", clear)); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("gpgv", "--keyring", ring, put("clear", bytes.Replace(clear, []byte("abc"), []byte("abd"), 1))); err == nil {
		t.Errorf("a changed text is accepted: %s", out)
	}
	detached, err := s.Detached(text, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file, signature := put("file", text), put("file.asc", detached)
	if out, err := run("gpgv", "--keyring", ring, signature, file); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	put("file", text[1:])
	if out, err := run("gpgv", "--keyring", ring, signature, file); err == nil {
		t.Errorf("a changed file is accepted: %s", out)
	}
	for _, wrong := range []string{"", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if _, err := ReadSigner([]byte(wrong)); err == nil {
			t.Errorf("%q is a key", wrong)
		}
	}
}
