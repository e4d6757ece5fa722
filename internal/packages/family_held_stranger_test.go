// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"
)

// strange installs a library of the family from a file, in a version that no repository has.
func (m *machine) strange() {
	m.t.Helper()
	m.repo.add(deb{name: "libnvidia-fbc1-580", version: "580.42.01-0local1"})
	m.update()
	m.must("apt-get", "-y", "install", "libnvidia-fbc1-580")
	m.repo.drop("libnvidia-fbc1-580", "580.42.01-0local1")
	m.update()
	m.must("apt-get", "clean")
}

// A library of the family that its owner holds is not removed: the plan refuses, as for a hold on what apt draws along.
func TestHeldStrangerIsNotRemoved(t *testing.T) {
	m := newMachine(t)
	m.repo.branches()
	m.strange()
	m.must("apt-mark", "hold", "libnvidia-fbc1-580")
	said := m.tried(leaves(nvidia(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
	if got := m.state("libnvidia-fbc1-580"); said == "" && !got.Installed() {
		t.Errorf("a package that its owner holds was removed: %q", got.String())
	}
}
