// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestManagerPackage: the fabric manager comes from where the driver's packages are. The names are
// those of test/listings.
func TestManagerPackage(t *testing.T) {
	for _, c := range []struct {
		version   string
		installed []string
		want      string
	}{
		{"580.95.05", []string{"nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580"}, "nvidia-fabricmanager"},
		{"580.95.05", []string{"nvidia-dkms-580-server-open", "libnvidia-compute-580-server"}, "nvidia-fabricmanager-580"},
		{"580.95.05", nil, ""},
		{"strange", []string{"libnvidia-compute-580"}, ""},
	} {
		isInstalled := func(name string) bool { return slices.Contains(c.installed, name) }
		check.Equal(t, ManagerPackage(Load(), c.version, isInstalled), c.want, "%s with %q: ", c.version, c.installed)
	}
}
