// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestSigner: GnuPG accepts the key and both signatures, finds the same fingerprint, and refuses
// what was changed.
func TestSigner(t *testing.T) {
	for _, program := range []string{"gpg", "gpgv"} {
		if _, err := exec.LookPath(program); err != nil {
			must.That(t, os.Getenv("CI") != "true", "%v", err)
			t.Skip(err)
		}
	}

	_, secret, err := NewSigner()
	must.OK(t, err)
	s := must.Get(ReadSigner(secret))(t)
	public := must.Get(s.Public())(t)
	if found, err := Fingerprints(public, ""); err != nil || len(found) != 1 || found[0] != s.Fingerprint() {
		t.Errorf("fingerprints %v, %v; want %s", found, err, s.Fingerprint())
	}
	dir := t.TempDir()
	put := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		must.OK(t, os.WriteFile(name, data, 0o600))
		return name
	}

	run := func(argv ...string) (string, error) {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		return string(out), err
	}

	home, err := os.MkdirTemp("", "gpg") // a short name: gpg's sockets lie in it
	must.OK(t, err)
	defer os.RemoveAll(home)
	shown, err := run("gpg", "--homedir", home, "--batch", "--with-colons", "--show-keys", put("key.asc", public))
	if err != nil || !bytes.Contains([]byte(shown), []byte(s.Fingerprint())) || !bytes.Contains([]byte(shown), []byte("uid:")) {
		t.Errorf("gpg shows %s, %v", shown, err)
	}
	packets := must.Get(dearmor(public))(t)
	ring := put("key.gpg", packets)

	text := []byte("Origin: test\nSHA256:\n abc 1 Packages\n")
	clear := must.Get(s.Clearsign(text, time.Now()))(t)
	if out, err := run("gpgv", "--keyring", ring, put("clear", clear)); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("gpgv", "--keyring", ring, put("clear", bytes.Replace(clear, []byte("abc"), []byte("abd"), 1))); err == nil {
		t.Errorf("a changed text is accepted: %s", out)
	}
	_, secret, err = NewSigner()
	must.OK(t, err)
	forged := must.Get(must.Get(ReadSigner(secret))(t).Clearsign(text, time.Now()))(t)
	if out, err := run("gpgv", "--keyring", ring, put("clear", forged)); err == nil {
		t.Errorf("the signature of another key is accepted: %s", out)
	}
	detached := must.Get(s.Detached(text, time.Now()))(t)
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
