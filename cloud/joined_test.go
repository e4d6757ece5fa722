// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// TestQuickKubelet: a kubelet that registers its node before we look again has done so because we started it: the journal has it,
// and undo says that the cluster still has the node. One that was there at first is nobody's change.
func TestQuickKubelet(t *testing.T) {
	for _, quick := range []bool{true, false} {
		a := apiFixture(t, apiSpec)
		if quick {
			a.sim.DeleteNode("gpu-1")
		}
		w := waitRegistered(spec.Spec{}, a.facts, "gpu-1", apiKubelet)
		look := func(want converge.State) {
			t.Helper()
			if is, err := w.Look(a.ctx, a); err != nil || is != want {
				t.Errorf("quick %t: %q, %v; want %q", quick, is, err, want)
			}
		}
		if !quick {
			look("there")
			continue
		}
		look("")
		a.sim.AddNode("gpu-1", nil)
		look("")
		if err := w.Make(a.ctx, a, "there"); err != nil {
			t.Fatal(err)
		}
		look("there")
	}
}
