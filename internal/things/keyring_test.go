// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/must"
)

// The fingerprints are gpg's own words about the keys in testdata, which were made for this test.
const (
	edKey  = "F22CC24F7F742054127646D9354FB98A5B4AF876"
	rsaKey = "721C5B55B89856668652F2E2F840835E39C2E4F4"
)

func keyFile(t testing.TB, name string) []byte {
	t.Helper()
	b := must.Get(os.ReadFile("testdata/" + name))(t)
	return b
}

func TestFingerprints(t *testing.T) {
	ed, rsa, both := keyFile(t, "ed25519.asc"), keyFile(t, "rsa2048.gpg"), keyFile(t, "both.asc")
	changed := slices.Clone(rsa)
	changed[20] ^= 1
	for _, tt := range []struct {
		what string
		data []byte
		want string // fingerprints, or an error's words
	}{
		{"armored", ed, edKey},
		{"binary", rsa, rsaKey},
		{"two in one block", both, edKey + " " + rsaKey},
		{"two blocks", append(slices.Clone(ed), armor(rsa)...), edKey + " " + rsaKey},
		{"text before it", append([]byte("Dear admin,\n\n"), ed...), edKey},
		{"windows line ends", bytes.ReplaceAll(ed, []byte("\n"), []byte("\r\n")), edKey},
		{"with a header line", bytes.Replace(ed, []byte("\n\n"), []byte("\nVersion: GnuPG v2\n\n"), 1), edKey},
		{"another key", changed, "!" + rsaKey},
		{"cut off", rsa[:len(rsa)-1], "cut off"},
		{"cut off in armor", ed[:len(ed)-40], "cut off"},
		{"a block that another program reads", bytes.Replace(append(slices.Clone(ed), armor(rsa)...), []byte("\n\n"), []byte("\n!\n\n"), 1), "cut off"},
		{"nothing", nil, "no OpenPGP key"},
		{"a web page", []byte("<html>404</html>"), "no OpenPGP key"},
		{"a secret key", []byte{0xc5, 1, 4}, "secret"},
		{"a message", []byte{0xcb, 1, 4}, "not part of a public key"},
		{"an old version", []byte{0xc6, 1, 3}, "a version that no repository uses"},
	} {
		found, err := fingerprints(tt.data)
		got := strings.Join(found, " ")
		if err != nil {
			got = err.Error()
		}
		if not, ok := strings.CutPrefix(tt.want, "!"); ok && got == not || !ok && !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
}

func TestArmor(t *testing.T) {
	if got := armor(must.Get(dearmor(keyFile(t, "ed25519.asc")))(t)); !bytes.Equal(got, keyFile(t, "ed25519.asc")) {
		t.Errorf("armored otherwise than gpg does:\n%s", got)
	}
}

func FuzzFingerprints(f *testing.F) {
	for _, name := range []string{"ed25519.asc", "rsa2048.gpg", "both.asc"} {
		f.Add(keyFile(f, name))
	}
	f.Add([]byte(strings.Repeat("-----BEGIN "+armored+"-----\n\nmDMEawE=\n-----END "+armored+"-----\n", 10_000)))
	f.Add([]byte("-----BEGIN " + armored + "-----\n\n" + strings.Repeat("A\n", 50_000) + "-----END " + armored + "-----"))
	f.Add(bytes.Repeat([]byte{0xc6, 6, 4, 0, 0, 0, 0, 1}, 10_000))
	f.Fuzz(func(t *testing.T, data []byte) {
		var found []string
		var err error
		alloc.Most(t, 100, len(data), func() { found, err = fingerprints(data) })
		if err != nil {
			return
		}
		packets := must.Get(dearmor(data))(t)
		again, err := fingerprints(armor(packets))
		if err != nil || !slices.Equal(found, again) {
			t.Errorf("%v, armored %v, %v", found, again, err)
		}
	})
}
