// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestMissingGPUs: a machine that was ready with two GPUs and has one names the other's address, from its own journal,
// without a question to the cluster; and what leads out of it leads out for good.
func TestMissingGPUs(t *testing.T) {
	a := apiFixture(t, apiSpec)
	missing := func() string {
		f := a.facts
		f.Live = true
		return MissingGPUs(a, a.engine().Spec, f)
	}
	both, driver := a.facts.GPUs, *a.facts.Driver
	have := func(n int) {
		a.facts.GPUs, a.facts.Driver.GPUs = both[:n], driver.GPUs[:n]
	}
	for n := range 2 {
		have(n)
		check.None(t, missing(), "with %d before it was ready with both:", n)
	}
	have(2)
	a.apply()
	a.converged(a.mark())
	a.sim.Requests()
	check.None(t, missing(), "with both:")
	have(1)
	for _, part := range []string{"ready with 2", "none is at 0000:18:00.0"} {
		check.Has(t, missing(), part, "want %q in", part)
	}
	n := len(a.sim.Requests())
	check.That(t, n <= 0, "the cluster was asked %d times", n)

	have(0)
	got := missing()
	check.That(t, strings.Contains(got, "ready with 2") && strings.Contains(got, "none is at 0000:17:00.0, 0000:18:00.0"), "without any: %q", got)

	moved := both[0]
	moved.Address = "0000:99:00.0"
	a.facts.GPUs = append(both[1:2:2], moved)
	check.None(t, missing(), "at other places:")
	passed := both[1]
	passed.Driver = "vfio-pci"
	a.facts.GPUs = append(both[:1:1], passed)
	check.None(t, missing(), "given to a guest:")

	have(1) // and it is meant so: an operator who sets gpu_count = 1 passes preflight
	a.Advance(time.Minute)
	a.apply()
	check.None(t, missing(), "after the node was ready with one:")
	have(2)
	a.Advance(time.Minute)
	a.apply()
	have(1)
	check.That(t, missing() != "", "a GPU that was added again and lost again is not missed")
	must.Get(a.engine().Undo(a.ctx, a, "all", nil))(t)
	check.None(t, missing(), "after undo:")
}
