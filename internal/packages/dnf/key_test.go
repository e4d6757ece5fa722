// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestRPMKeys: rpm's database calls public keys packages, by names that hold only the end of a fingerprint: a planted key may have
// the same end, so the key itself says which it is.
func TestRPMKeys(t *testing.T) {
	const trusted, shared = "F22CC24F7F742054127646D9354FB98A5B4AF876", "5b4af876"
	ours, others := inRPM(t, "../../things/testdata/ed25519.asc"), inRPM(t, "../../things/testdata/rsa2048.gpg")
	record := func(id, made, key string) string {
		return "gpg-pubkey\t0\t" + id + "\t" + made + "\t(none)\t1\t1\t" + key + "\n"
	}
	const before, after = "bash\t0\t5.2.26\t4.el10\tx86_64\t1\t1\t(none)\n", "zsh\t0\t5.9\t1\tx86_64\t1\t1\t(none)\n"
	for what, tt := range map[string]struct {
		keys string
		want []string
	}{
		"imported":                       {record(shared, "62589a51", ours), []string{"gpg-pubkey-5b4af876-62589a51"}},
		"imported by rpm 6":              {record(strings.ToLower(trusted), "62589a51", ours), []string{"gpg-pubkey-" + strings.ToLower(trusted) + "-62589a51"}},
		"planted with the same end":      {record(shared, "62589a51", others), nil},
		"both":                           {record(shared, "62589a52", others) + record(shared, "62589a51", ours), []string{"gpg-pubkey-5b4af876-62589a51"}},
		"two keys in one":                {record(shared, "62589a51", inRPM(t, "../../things/testdata/both.asc")), nil},
		"a key that cannot be read":      {record(shared, "62589a51", "bm8ga2V5"), nil},
		"a record without a key":         {record(shared, "62589a51", "(none)"), nil},
		"a fingerprint where a key goes": {record(trusted, "62589a51", trusted), nil},
	} {
		d := parseRPM(before + tt.keys + after)
		d.fill()
		if got := among(d.packages, []string{trusted}); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", what, got, tt.want)
		}
		if !d.packages["bash"].Installed() || !d.packages["zsh"].Installed() {
			t.Errorf("%s: the packages around it: %v", what, d.packages)
		}
	}
}

// inRPM is a key file as rpm's database has it: base64 in lines of 64 characters.
func inRPM(t *testing.T, name string) string {
	t.Helper()
	data := fileOf(t, name)
	if _, armored, ok := strings.Cut(string(data), "\n\n"); ok {
		armored, _, _ = strings.Cut(armored, "\n=")
		return armored
	}
	var lines []string
	for part := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), 64) {
		lines = append(lines, string(part))
	}
	return strings.Join(lines, "\n")
}

// TestKeyOfRPMByFile: where only the file says the fingerprint, that is what rpm is asked for.
func TestKeyOfRPMByFile(t *testing.T) {
	const file = "/etc/pki/rpm-gpg/x.asc"
	n := must.Get(simhost.New([]byte("-- etc/pki/rpm-gpg/ --\n")))(t)
	key := fileOf(t, "../../things/testdata/ed25519.asc")
	put := func(data []byte) {
		must.OK(t, n.WriteFile(file, data, host.Attr{Mode: 0o644}))
	}
	read := new(packages.Reading)
	for _, trusted := range []string{"sha256:" + fmt.Sprintf("%x", sha256.Sum256(key)), file} {
		k := NewKey(trusted, []string{file}, new(packages.Reading)).(rpmKey)
		if k.trusted != trusted || k.file != file {
			t.Errorf("built again as %+v", k)
		}
		if f, err := k.fingerprints(n); len(f) != 0 || err != nil {
			t.Errorf("%s, no file: %v, %v", trusted, f, err)
		}
		put(key)
		if f, err := k.fingerprints(n); err != nil || !slices.Equal(f, []string{"F22CC24F7F742054127646D9354FB98A5B4AF876"}) {
			t.Errorf("%s: %v, %v", trusted, f, err)
		}
		must.OK(t, n.Remove(file))
	}
	put([]byte("another"))
	if f, err := (rpmKey{read, "sha256:" + fmt.Sprintf("%x", sha256.Sum256(key)), file}).fingerprints(n); len(f) != 0 || err != nil {
		t.Errorf("another file: %v, %v", f, err)
	}
}

func fileOf(t *testing.T, name string) []byte {
	t.Helper()
	data := must.Get(os.ReadFile(name))(t)
	return data
}
