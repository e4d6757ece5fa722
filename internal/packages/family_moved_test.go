// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
)

// A driver that its administrator upgraded by apt after gpuadm installed it is upgraded across names as well.
func TestDriverMovedByOthersIsUpgradedAcrossNames(t *testing.T) {
	m := newMachine(t)
	m.repo.branches()
	m.update()
	m.apply(leaves(nvidia(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	const to = "=580.105.08-0ubuntu1"
	m.must("apt-get", "-y", "--allow-change-held-packages", "install", "nvidia-dkms-580-open"+to, "libnvidia-compute-580"+to, "nvidia-kernel-common-580"+to, "libnvidia-gpucomp-580"+to)
	if said := m.tried(leaves(nvidia(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute")); said != "" {
		t.Errorf("the upgrade is refused:\n%s", said)
	}
}
