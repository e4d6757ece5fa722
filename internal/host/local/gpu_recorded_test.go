//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestGPULikeRecord: gpuadm reads of the fake H100 what it read of a real one.
func TestGPULikeRecord(t *testing.T) {
	machine := must.Get(simhost.New(must.Get(os.ReadFile("../../../test/hosts/h100-passed-through.txtar"))(t)))(t)
	real := must.Get(machine.Driver(t.Context()))(t)
	fake := must.Get(openFake(t, "passed H100-80").Driver(t.Context()))(t)
	must.That(t, len(real.GPUs) == 1 && len(fake.GPUs) == 1, "%d real GPUs, %d fake ones", len(real.GPUs), len(fake.GPUs))
	check.None(t, cmp.Diff(anyGPU(real.GPUs[0]), anyGPU(fake.GPUs[0])), "-real +fake")
}

// anyGPU is a GPU without what differs between two machines: the GPU's own names, its owner's
// setting, the NVLink fabric, of which the recorded machine has none, and what only the child
// process reads.
func anyGPU(g host.GPU) host.GPU {
	g.Address, g.UUID, g.Serial = "", "", ""
	g.Persistent = false
	g.Fabric = host.Fabric{}
	g.Recovery, g.PowerLimit, g.PowerUsual = "", 0, 0
	return g
}
