// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
)

// A part that another process moved is brought back to the version that the driver has: an open version is no reason to
// upgrade the whole driver of a node that was converged.
func TestDriftUnderAnOpenVersionDoesNotUpgradeTheDriver(t *testing.T) {
	m := newMachine(t)
	m.repo.branches()
	m.update()
	m.apply(leaves(nvidia(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	want := leaves(nvidia(), "580.*", "nvidia-dkms-580-open", "libnvidia-compute-580")
	if res := m.apply(want); res.Run != "" {
		t.Fatalf("changed %v", res.Made)
	}
	m.must("apt-get", "-y", "install", "libnvidia-encode-580=580.105.08-0ubuntu1") // an administrator adds a library
	m.apply(want)
	if got := m.state("nvidia-dkms-580-open"); got.Version != "580.95.05-0ubuntu1" {
		t.Errorf("the kernel module's package is %q", got.String())
	}
}
