// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
	"time"
)

// A dnf that was killed before it installed anything leaves its lock. What others install later by rpm itself is not its work.
func TestStaleLockAndALaterInstallation(t *testing.T) {
	d := parseRPM("bash\t0\t5.1\t9.el9\tx86_64\t1700000000\t1700000000\t(none)\nagent\t0\t1.0\t1\tx86_64\t1700500000\t1700500000\t(none)\n")
	d.cut = time.Unix(1700100000, 0) // killed four days before the agent came by rpm -i
	if half := d.halfDone(); len(half) > 0 {
		t.Errorf("half-installed: %v", half)
	}
}
