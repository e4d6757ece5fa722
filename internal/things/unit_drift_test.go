// SPDX-License-Identifier: Apache-2.0

package things

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	checks "github.com/gpuadm/gpuadm/test/check"
)

// TestUnitSamePart: what a boot starts was not changed outside gpuadm; a word that gpuadm changed and
// that differs was.
func TestUnitSamePart(t *testing.T) {
	for _, tt := range []struct {
		before, after, found converge.State
		same                 bool
	}{
		{"", "enabled inactive", "enabled active", true},
		{"disabled inactive", "enabled inactive", "enabled active", true},
		{"disabled inactive", "enabled inactive", "disabled active", false},
		{"", "enabled inactive", "masked inactive", false},
		{"", "enabled active", "enabled inactive", false},
		{"disabled active", "enabled active", "enabled inactive", true},
		{"enabled inactive", "masked inactive", "enabled inactive", false},
		{"", "enabled inactive", "", false},
	} {
		same := unit("u").SamePart(tt.before, tt.after, tt.found)
		checks.Equal(t, same, tt.same, "%q to %q, found as %q: the same", tt.before, tt.after, tt.found)
	}
}
