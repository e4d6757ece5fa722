// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestEachGPU: with failure = "per-gpu" one GPU that is busy or gone waits, by name, and the others get their partitions; by default
// nothing is touched. Once it is free the same command partitions it.
func TestEachGPU(t *testing.T) {
	const layout = "[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n"
	for _, failure := range []string{"", "all-or-nothing", "per-gpu"} {
		n := gpus(t, h100s)
		head := ""
		if failure != "" {
			head = "[mig]\nfailure = \"" + failure + "\"\n"
		}
		apply(t, n, engine(t, "[[mig.gpu]]\nlayout = { \"7g.80gb\" = 1 }\n"))
		n.Use(second, 0, 4711)
		before := ids(t, n)
		e := engine(t, head+layout)
		res, err := e.Apply(context.Background(), n)
		if failure != "per-gpu" {
			if err == nil {
				t.Errorf("%q: applied", failure)
			}
			compare(t, failure+": nothing is touched", before, ids(t, n))
			continue
		}
		if !trouble.Passes(err) {
			t.Fatal(err, because(err))
		}
		if got := ids(t, n); !strings.Contains(got, "3g.40gb") && got == before {
			t.Errorf("%s: no GPU was partitioned: %s", failure, got)
		}
		p := plan(t, n, e)
		if p.Deferred != 1 || len(p.Changes) != 1 || !strings.Contains(p.Changes[0].Waits, "process 4711") {
			t.Errorf("%+v, planned again: %+v", res, p.Changes)
		}
		n.Use(second, -1)
		apply(t, n, e)
		if p := plan(t, n, e); len(p.Changes) > 0 {
			t.Errorf("left: %+v", p.Changes)
		}
	}
}

// lostSecond is a machine whose second GPU has fallen off the bus.
type lostSecond struct{ *simhost.Node }

func (n lostSecond) Driver(ctx context.Context) (host.Driver, error) {
	d, err := n.Node.Driver(ctx)
	for i, g := range d.GPUs {
		if g.Address == second {
			d.GPUs[i] = host.GPU{Address: g.Address, Index: g.Index, Device: g.Device, Name: g.Name, Lost: "it has fallen off the bus"}
		}
	}
	return d, err
}

func TestLostGPUWaits(t *testing.T) {
	n := lostSecond{gpus(t, h100s)}
	e := engine(t, "[mig]\nfailure = \"per-gpu\"\n[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n")
	if _, err := e.Apply(context.Background(), n); !trouble.Passes(err) {
		t.Fatal(err)
	}
	if p, err := e.Plan(context.Background(), n); err != nil || p.Deferred != 1 || len(p.Changes) != 1 || !strings.Contains(p.Changes[0].Waits, "fallen off the bus") {
		t.Errorf("%+v, %v", p.Changes, err)
	}
}
