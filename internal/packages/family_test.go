// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// nvidia is the family that drivers hands to this package, as far as these tests need it.
func nvidia() *Family {
	return &Family{
		Group: "driver", Names: []string{"*nvidia*", "libcuda*", "cuda-drivers*"}, Branch: pattern.Of(`^linux-modules-nvidia-([0-9]+)-`),
		Apart: []string{"nvidia-settings"},
	}
}

func TestFamilyHas(t *testing.T) {
	f := nvidia()
	for _, c := range []struct {
		name, version string
		want          bool
	}{
		{"libnvidia-compute-580", "580.95.05-0ubuntu1", true},
		{"libnvidia-compute-580:i386", "580.95.05-0ubuntu1", true},
		{"nvidia-driver-cuda", "3:580.95.05-1.el9", true},
		{"nvidia-settings", "510.47.03-0ubuntu1", false}, // the distribution's own
		{"nvidia-container-toolkit", "1.18.0-1", false},
		{"nvidia-support", "20240109+1", false},
		{"nvidia-driver-selinux", "0.1-2", false},
		{"linux-modules-nvidia-580-server-open-generic", "6.8.0-106.106", false},
		{"nvlsm", "2025.06.11-1", false},
		{"nvidia-fs", "2.27.3-1", false},
		{"containerd", "580.1.1", false},
		{"libcuda1", "999.9-1", true},
		{"libcuda1", "580", false},
		{"libcuda1", "580.", false},
		{"libcuda1", "580..5", false},
		{"libcuda1", "580.95.05a", false},
		{"libcuda1", "580.95\n", false},
		{"libcuda1", "5.0.95", false},
		{"libcuda1", "5800.95", false},
		{"libcuda1", "299.95", false},
		{"libcuda1", "a80.95", false},
		{"libcuda1", "", false},
	} {
		if got := f.Has(c.name, c.version); got != c.want {
			t.Errorf("%s %s: %v", c.name, c.version, got)
		}
	}
}
