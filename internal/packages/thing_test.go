// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// TestTakeOut: what a transaction left half way, and what has other marks since, is rolled back; another version stays, and is named.
func TestTakeOut(t *testing.T) {
	for _, c := range []struct{ found, before, after, want converge.State }{
		{"2-1", "1-1 held auto", "2-1 held auto", "1-1"},
		{"1-1", "1-1 held", "2-1 held", "1-1"},
		{"2-1 held auto half-configured", "1-1 held auto", "2-1 held auto", "1-1 held auto"},
		{"2-1 unpacked", "", "2-1 held", ""},
		{"- half-installed", "", "2-1 held", ""},
		{"2-1 config-files", "", "2-1 held", ""},
		{"2-1 auto", "1-1", "2-1", "1-1 auto"},
		{"3-1 held", "1-1 held", "2-1 held", "stays"},
	} {
		got, left, err := thing{NewSet(), "p"}.TakeOut(nil, c.found, c.before, c.after)
		if len(left) == 1 && got == c.found {
			got = "stays"
		}
		if err != nil || got != c.want {
			t.Errorf("found %q after %q → %q: %q %q %v, want %q", c.found, c.before, c.after, got, left, err, c.want)
		}
	}
}
