// SPDX-License-Identifier: Apache-2.0

package gputable

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestRows: each id has one row, and a board that was recorded has all of what the tests' GPUs are
// made of.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range All() {
		check.That(t, len(g.ID) == 4 && strings.Trim(g.ID, "0123456789abcdef") == "", "%q is not a PCI device id", g.ID)
		check.That(t, !seen[g.ID], "%s is there twice", g.ID)
		seen[g.ID] = true

		r := g.Recorded
		none := r == Recorded{}
		whole := r.Name != "" && r.Subsystem != "" && r.MiB != "" && r.Capability != ""
		check.That(t, none || whole, "%s: %+v", g.ID, r)
		check.That(t, !g.Switch() || strings.HasPrefix(g.Name, "NVSwitch"), "%s has no architecture", g.ID)
		check.That(t, !g.Arm || g.Product != "", "%s is on a board with Arm, and has no product", g.ID)
	}

	check.That(t, len(seen) >= 70, "%d rows: that is not all", len(seen))
}

func TestOf(t *testing.T) {
	h100 := Of("2330")
	check.Equal(t, h100.Device(), "0x233010DE", "device")
	check.Equal(t, h100.MIG, "H100-80GB", "MIG table")
	check.Equal(t, Of("2342").NVMLArch(), "hopper", "GH200 to NVML:")
	check.That(t, Of("") == nil && Of("0000") == nil, "an unknown id has a row")
}
