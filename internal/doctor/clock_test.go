// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
)

// TestClockByFiles: the clock is behind a file that a program of the machine wrote, wherever the
// distribution has that file.
func TestClockByFiles(t *testing.T) {
	for _, name := range []string{
		"var/lib/rpm/rpmdb.sqlite",
		"var/lib/rpm/Packages",              // RHEL 8
		"usr/lib/sysimage/rpm/rpmdb.sqlite", // Fedora, RHEL 10
		"usr/lib/sysimage/rpm/Packages.db",  // SUSE
		"var/lib/systemd/timesync/clock",
		"var/lib/chrony/drift",
		"var/lib/chrony/chrony.drift", // Debian, Ubuntu
	} {
		m := incident.Working(t)
		m.Put(name, "x\n")
		m.Find(name).Name += " ctime=2100-01-02T03:04:05Z"
		check.Equal(t, codes(examine(t, m.Node())), "SYS-003", "%s: root causes", name)
	}
}
