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
// its folder.
func TestUpgradesWithoutAFolder(t *testing.T) {
	t.Parallel()
	m := withBranches(t)
	m.must("rm", "-r", "/etc/apt/apt.conf.d")

	m.apply(func(*packages.Set) []converge.Want {
		return apt{}.Upgrades([]string{"nvidia-driver"}, false)
	})
	check.Has(t, m.must("cat", "/etc/apt/apt.conf.d/52gpuadm-hold"), `"^nvidia-driver$";`, "the file:")
}
