// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestUpgradesWithoutAFolder: a machine need not have the folder of apt's settings, and an operator
// may skip the stage that writes other files there. The file that holds the packages back brings
// its folder. Its expressions match the names themselves: apt passes a backslash on as it is.
func TestUpgradesWithoutAFolder(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	m.must("rm", "-r", "/etc/apt/apt.conf.d")

	m.apply(func(*packages.Set) []converge.Want {
		return apt{}.Upgrades([]string{"nvidia-driver", "linux-modules-nvidia-580-6.8.0-88-generic", "a++"}, false)
	})
	file := m.must("cat", "/etc/apt/apt.conf.d/52gpuadm-hold")
	check.Has(t, file, `"^nvidia-driver$";`, "the file:")
	check.Has(t, file, `"^linux-modules-nvidia-580-6\.8\.0-88-generic$";`, "the file:")
	check.Has(t, file, `"^a\+\+$";`, "the file:")
}
