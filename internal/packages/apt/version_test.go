// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"os/exec"
	"testing"
)

func TestCompareLikeDpkg(t *testing.T) {
	t.Parallel()
	need(t, "dpkg")
	versions := []string{"1", "1.0", "1.0-1", "1.0-1~", "1.0~rc1-1", "1:0.5", "1.0+b1", "1.0a", "580.95.05-0ubuntu1", "580.95.05-1ubuntu1", "580.105.08-0ubuntu1", "580.9-1", "09", "9", "1.0-0", "1.0.0-1.el9", "1.A", "1.a"}
	for _, a := range versions {
		for _, b := range versions {
			want := 0
			if exec.Command("dpkg", "--compare-versions", a, "lt", b).Run() == nil {
				want = -1
			} else if exec.Command("dpkg", "--compare-versions", a, "gt", b).Run() == nil {
				want = 1
			}
			if got := sign((apt{}).Compare(a, b)); got != want {
				t.Errorf("%s and %s: %d, dpkg says %d", a, b, got, want)
			}
		}
	}
}

func sign(n int) int { return min(1, max(-1, n)) }

func FuzzCompare(f *testing.F) {
	f.Add("1.0-1", "1.0~rc-1")
	f.Add("1:2", "")
	f.Add("\x00", "\x001") // no version, and no reason to hang
	f.Fuzz(func(t *testing.T, a, b string) {
		if sign((apt{}).Compare(a, b)) != -sign((apt{}).Compare(b, a)) || (apt{}).Compare(a, a) != 0 {
			t.Errorf("%q and %q", a, b)
		}
	})
}
