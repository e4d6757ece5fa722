// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// A branch that NVIDIA has prolonged is supported once the machine's own catalog says so.
func TestOverlayProlongsABranch(t *testing.T) {
	c, err := Load().overlaid([]byte(`branches = [ { branch = 590, designation = "PB", end = "2030-01", origin = "me", checked = "memory", confidence = "low", date = "2026-11-22" } ]`))
	must.OK(t, err)
	if end := c.endOf(590, "2026-11-22"); end != "" {
		t.Errorf("branch 590 ended in %s", end)
	}
}
