// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import "testing"

func TestOwnVersions(t *testing.T) {
	for _, c := range []struct {
		pattern, version string
		want             bool
	}{
		{"580.95.05", "580.95.05-0ubuntu1", true},
		{"580.95.05", "3:580.95.05-1.el9", true},
		{"580.95.05", "580.95.050-1", false},
		{"580.*", "580.95.05-1", true},
		{"580.*", "5800.1-1", false},
		{"580.*", "580-1", true},
		{"*", "1", true},
		{"1.18.0~rc.1", "1.18.0~rc.1-1", true},
	} {
		if got := Matches(c.pattern, c.version); got != c.want {
			t.Errorf("%s matches %s: %v", c.pattern, c.version, got)
		}
	}
}
