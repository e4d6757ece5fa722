// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// inUse has instances made outside gpuadm on all of its GPUs, one of them in use, one half-made.
const inUse = `[[gpu]]
model = "A100-80"
mode = true
instance = [
  { profile = "3g.40gb", start = 4, clients = [4711] },
  { profile = "2g.20gb", start = 0, compute = [1, 1] },
  { profile = "1g.10gb", start = 3, compute = [] },
]
[[gpu]]
model = "H200"
mode = true
instance = [{ profile = "4g.71gb", start = 0 }, { profile = "1g.18gb", start = 6 }]
[[gpu]]
model = "A100-80"
`

// A run that is killed before any touch, and goes on, ends as one that was not; then undo in what was there, ids included, and
// the same for undo. The instance in use is never touched: the simulated driver would note it.
func TestKilledAtEveryTouchOfGPUs(t *testing.T) {
	for name, text := range map[string]string{
		"grow":   "[[mig.gpu]]\nmatch = [\"A100-80GB\"]\nlayout = { \"3g.40gb\" = 1, \"1g.10gb\" = 4 }\n[[mig.gpu]]\nmatch = [\"H200\"]\nlayout = { \"1g.18gb\" = 7 }\n",
		"shrink": "[[mig.gpu]]\nmatch = [\"A100-80GB\"]\nlayout = { \"3g.40gb\" = 1 }\n[[mig.gpu]]\nmatch = [\"H200\"]\nenabled = false\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := func() *converge.Engine { return engine(t, text) }
			whole := gpus(t, inUse+persistenced)
			before := ids(t, whole) + whole.Units()
			apply(t, whole, e())
			applied, made := ids(t, whole)+whole.Units(), whole.Touches()
			undo(t, whole, e(), "all")
			compare(t, "undone", before, ids(t, whole)+whole.Units())
			between := map[string]bool{}
			for at := range whole.Touches() {
				n := gpus(t, inUse+persistenced)
				n.CutAt(at)
				_, err := e().Apply(context.Background(), n)
				if err == nil {
					_, err = e().Undo(context.Background(), n, "all", nil)
				}
				if err == nil || !n.Off() {
					t.Fatalf("not killed at touch %d: %v", at, err)
				}
				n.Revive()
				between[ids(t, n)] = true
				if at < made {
					apply(t, n, e())
					compare(t, fmt.Sprintf("apply killed at touch %d, applied again", at), applied, ids(t, n)+n.Units())
					undo(t, n, e(), "all")
				} else {
					undo(t, n, e(), "")
				}
				compare(t, fmt.Sprintf("killed at touch %d of %d, undone", at, made), before, ids(t, n)+n.Units())
				if v := n.Violations(); len(v) > 0 {
					t.Fatalf("killed at touch %d: %v", at, v)
				}
			}
			if len(between) < 20 {
				t.Errorf("killed between %d states of the GPUs only", len(between))
			}
		})
	}
}

// The law of power cuts does cut between changes of GPUs.
func TestPowerCutsHitGPUs(t *testing.T) {
	for _, m := range machines(t) {
		if m.name != "mig-h100-a100-t4" {
			continue
		}
		for _, name := range []string{"mig", "mig two"} {
			whole := m.boot(t)
			apply(t, whole, engine(t, specs[name]))
			between := map[string]bool{}
			for at := range whole.Touches() {
				n := m.boot(t)
				n.CutAt(at)
				_, _ = engine(t, specs[name]).Apply(context.Background(), n)
				n.Revive()
				between[ids(t, n)] = true
			}
			if want := map[string]int{"mig": 15, "mig two": 5}[name]; len(between) < want {
				t.Errorf("%s: cut between %d states of the GPUs, want %d", name, len(between), want)
			}
		}
		return
	}
	t.Error("the machine is not there")
}
