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

// TestAttachTogether: the GPUs are attached side by side, not one after the other. Each call returns once all of them are under way.
func TestAttachTogether(t *testing.T) {
	t.Parallel()
	const count = 8
	var asked sync.WaitGroup
	asked.Add(count)
	got := attach(&mock.Interface{DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
		asked.Done()
		asked.Wait()
		return nil, nvml.Return(i)
	}}, count)
	for i, h := range got {
		check.Equal(t, int(h.ret), i, "the answer for GPU")
	}
}
