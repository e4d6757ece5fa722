// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestGPUCountWithGuest: gpu_count is the number of GPUs on the bus, for the readiness check as for
// preflight: a GPU that is passed through to a virtual machine counts, and the driver lacks it.
func TestGPUCountWithGuest(t *testing.T) {
	const displayClass = "030200"
	f := facts.Facts{
		GPUs: []facts.PCI{
			{Address: "0000:17:00.0", Class: displayClass, Driver: "nvidia"},
			{Address: "0000:18:00.0", Class: displayClass, Driver: "nvidia"},
			{Address: "0000:19:00.0", Class: displayClass, Driver: "vfio-pci"},
		},
		Driver: &host.Driver{
			GPUs: []host.GPU{
				{Address: "0000:17:00.0"},
				{Address: "0000:18:00.0"},
			},
		},
	}

	for expected, want := range map[int]string{
		0: "",
		2: "the driver has 2 GPUs and virtual machines have 1, node.toml expects 2",
		3: "",
		4: "the driver has 2 GPUs and virtual machines have 1, node.toml expects 4",
	} {
		s := spec.Spec{Driver: spec.Driver{GPUCount: expected}}
		check.Equal(t, wrongGPUCount(s, f), want, "gpu_count = %d:", expected)
	}
}
