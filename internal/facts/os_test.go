// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestOSIsPrintable: a value of os-release with characters that no vendor writes counts as not given.
func TestOSIsPrintable(t *testing.T) {
	for text, want := range map[string]OS{
		"ID=\"ubu\x1bntu\"\nVERSION_ID='24.04\n  because  forged'\n": {ID: "linux"},
		"ID=debian\nPRETTY_NAME=\"\u202eDebian\"\nVERSION_ID=12":     {ID: "debian", Version: "12"},
		"ID=debian\nID_LIKE=\"a\u2028b\"\nPRETTY_NAME=\"a\xffb\"":    {ID: "debian"},
		"ID=x\nPRETTY_NAME=\"Système 1 (Ünï)\"\nID_LIKE=\"a b\"":     {ID: "x", Name: "Système 1 (Ünï)", Like: []string{"a", "b"}},
	} {
		f := must.Get(Gather(t.Context(), files{"/etc/os-release": text}, Needs{}))(t)
		if diff := cmp.Diff(want, f.OS); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}
