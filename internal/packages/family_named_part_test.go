// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// A part of the family that the spec names by packages = [] follows the driver to another version.
func TestNamedPartFollowsTheDriver(t *testing.T) {
	m := newMachine(t)
	m.repo.branches()
	m.update()
	want := func(version string) func(*Set) []converge.Want {
		return func(s *Set) []converge.Want {
			wants := leaves(nvidia(), version, "nvidia-dkms-580-open", "libnvidia-compute-580")(s)
			w := Want(s, "libnvidia-encode-580", State{Version: "libnvidia-encode-580=*"}, "the spec names it")
			w.Section = "driver"
			return append(wants, w)
		}
	}
	m.apply(want("580.95.05"))
	if said := m.tried(want("580.105.08")); said != "" {
		t.Errorf("the upgrade is refused:\n%s", said)
	}
}
