// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// TestTakeOut: what a transaction left half way, and what has other marks since, is put back; another version is not ours.
func TestTakeOut(t *testing.T) {
	for _, c := range []struct{ found, before, after, want converge.State }{
		{"2-1", "1-1 held auto", "2-1 held auto", "1-1"},
		{"1-1", "1-1 held", "2-1 held", "1-1"},
		{"2-1 held auto half-configured", "1-1 held auto", "2-1 held auto", "1-1 held auto"},
		{"2-1 unpacked", "", "2-1 held", ""},
		{"- half-installed", "", "2-1 held", ""},
		{"2-1 config-files", "", "2-1 held", ""},
		{"2-1 auto", "1-1", "2-1", "1-1 auto"},
		{"3-1 held", "1-1 held", "2-1 held", "refused"},
		{"", "1-1 held", "2-1 held", "refused"},
	} {
		got, err := thing{NewSet(), "p"}.TakeOut(nil, c.found, c.before, c.after)
		if err != nil {
			got = "refused"
		}
		if got != c.want {
			t.Errorf("found %q after %q → %q: %q, want %q", c.found, c.before, c.after, got, c.want)
		}
	}
}
