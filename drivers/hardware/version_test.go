// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

func TestCompare(t *testing.T) {
	order := []string{"", "newest", "v580", "384.81", "450.80.02", "535.129.03", "535.161.07", "575.51.03", "575.64", "580", "580.65.06", "580.82.07", "580.95.05", "580.126.09", "595.0", "1000.1"}
	for i, a := range order {
		for j, b := range order {
			got := Compare(a, b)
			check.That(t, got < 0 == (i < j) && got > 0 == (i > j), "Compare(%q, %q) = %d", a, b, got)
		}
	}

	check.That(t, Compare("580.095.5", "580.95.05") == 0 && Compare("580", "580.0") == 0, "numbers are not compared as numbers")
}

func TestInBranch(t *testing.T) {
	for _, x := range []struct {
		version, branch string
		in              bool
	}{
		{"580.95.05", "580", true},
		{"580.95.05", "580.95", true},
		{"580", "580", true},
		{"5800.1", "580", false},
		{"580.950", "580.95", false},
		{"595.71.05", "580", false},
		{"580.95.05", "", false},
	} {
		check.That(t, InBranch(x.version, x.branch) == x.in, "%s in %s: not %v", x.version, x.branch, x.in)
	}
}
