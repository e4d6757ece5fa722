// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"regexp"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// FuzzNumbers compares numbers with the expressions that it says the same as.
func FuzzNumbers(f *testing.F) {
	driver := regexp.MustCompile(`^[1-9][0-9]{2,3}(\.[0-9]{1,3}){0,2}$`)
	toolkit := regexp.MustCompile(`^[1-9][0-9]{0,3}(\.[0-9]{1,4}){0,2}$`)
	for _, v := range []string{"", ".", "0", "58", "580", "058", "5800", "58000", "580.", "580..1", "580.65.06", "580.1000", "1.18.0", "1.18.0.1", "1.18.00000", "1.x", "1.٣", "1.18\n"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		if is, want := areNumbers(v, 3, 4, 3), driver.MatchString(v); is != want {
			t.Errorf("a driver's version: %q is %v, not %v", v, is, want)
		}
		if is, want := areNumbers(v, 1, 4, 4), toolkit.MatchString(v); is != want {
			t.Errorf("a toolkit's version: %q is %v, not %v", v, is, want)
		}
	})
}

// TestSecretName: no key of node.toml is taken for a secret's: its value could not be shown. The
// value of token_file is shown where it is a path, as it has to be.
func TestSecretName(t *testing.T) {
	for _, r := range table() {
		isSecret := secretKey(r.Name) && r.Name != "token_file"
		check.That(t, !isSecret, "%s of %s is taken for a secret's name", r.Name, r.Section)
	}
}
