// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestBuiltByDKMS: the folder of a module says whether DKMS has built it. Ready-made modules of
// NVIDIA and Red Hat lie below extra, too.
func TestBuiltByDKMS(t *testing.T) {
	for file, built := range map[string]bool{
		"updates/dkms/nvidia.ko.zst":             true,
		"updates/nvidia.ko":                      true,
		"extra/nvidia.ko.xz":                     true,
		"extra/drivers/video/nvidia/nvidia.ko":   false,
		"kernel/nvidia-580srv-open/nvidia.ko.xz": false,
	} {
		f := facts.Facts{Modules: &facts.Modules{Kernels: []facts.KernelModules{{
			Kernel: "6.1",
			Nvidia: &modinfo.Module{Path: "/lib/modules/6.1/" + file, Version: "580.95.05"},
		}}}}
		module := MachineOf(f, "").OnDisk["6.1"]
		check.Equal(t, module.DKMS, built, "%s: built by DKMS", file)
	}
}
