// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// tried applies and returns what the error says; "" where it went through.
func (m *machine) tried(wants func(*Set) []converge.Want) string {
	m.t.Helper()
	if _, err := m.engine(wants).Apply(m.t.Context(), m); err != nil {
		return wordsOf(err)
	}
	return ""
}

// A driver that was there before gpuadm came is upgraded across names like one that gpuadm installed.
func TestAdoptedDriverIsUpgradedAcrossNames(t *testing.T) {
	for name, before := range map[string]string{"same version": "580.95.05-0ubuntu1", "another version": "580.105.08-0ubuntu1"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.repo.branches()
			m.update()
			m.must("apt-get", "-y", "install", "nvidia-dkms-580-open="+before, "libnvidia-compute-580="+before, "nvidia-kernel-common-580="+before, "libnvidia-gpucomp-580="+before)
			m.apply(leaves(nvidia(), "580.95.05", "nvidia-dkms-580-open", "libnvidia-compute-580"))
			if said := m.tried(leaves(nvidia(), "595.71.05", "nvidia-dkms-open", "libnvidia-compute")); said != "" {
				t.Errorf("the upgrade is refused:\n%s", said)
			}
		})
	}
}
