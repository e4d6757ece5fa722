//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestAttachTogether: the GPUs are attached side by side, not one after the other. Each call
// returns once all of them are under way.
func TestAttachTogether(t *testing.T) {
	t.Parallel()
	const count = 8
	var asked sync.WaitGroup
	asked.Add(count)
	got := attach(&mock.Interface{DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
		asked.Done()
		asked.Wait()
		return nil, nvml.Return(i)
	}}, count, nil)
	for i, h := range got {
		check.Equal(t, int(h.ret), i, "the answer for GPU")
	}
}

// TestFabricFaults: the mask names what is wrong, and NVML's summary counts where the mask says
// nothing that is known.
func TestFabricFaults(t *testing.T) {
	for _, c := range []struct {
		mask    uint32
		summary uint8
		want    string
	}{
		{0, 0, ""},
		{0x80, 1, ""},
		{
			0x1155, 1,
			"its bandwidth is degraded, its route is being recovered, its route is unhealthy, it recovers from a time-out",
		},
		{0x300, 2, "its configuration is wrong"},
		{0xaa, 3, "NVML sums it up as of limited capacity"},
		{0x400aa, 2, "NVML sums it up as unhealthy"},
	} {
		check.Equal(t, fabricFaults(c.mask, c.summary), c.want, "%#x %d: the faults", c.mask, c.summary)
	}
}
