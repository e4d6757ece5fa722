// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
)

// A part of another source in the same upstream version that is a leaf too: one leaf is removed by hand, the choice falls on
// the source of that leaf.
func TestPackageThatDependsOnAPartIsNotLost(t *testing.T) {
	m := newMachine(t)
	m.repo.branches()
	m.repo.add(deb{name: "monitoring-agent", version: "1.0-1", fields: "Depends: libnvidia-compute-580\n"})
	m.update()
	m.apply(leaves(nvidia(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	m.must("apt-get", "-y", "install", "monitoring-agent")
	said := m.tried(leaves(nvidia(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute"))
	if got := m.state("monitoring-agent"); !got.Installed() {
		t.Errorf("a user's package was removed: %q (%s)", got.String(), said)
	}
}
