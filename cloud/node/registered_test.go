// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestQuickKubelet: a kubelet that registers its node before we look again has done so because we started it: the journal has it,
// and undo says that the cluster still has the node. One that was there at first is nobody's change.
func TestQuickKubelet(t *testing.T) {
	a := apiFixture(t, apiSpec)
	wanted := func() converge.Want {
		return WaitRegistered(new(Session), spec.Spec{}, a.facts, "gpu-1", apiKubelet)
	}
	look := func(w converge.Want, want converge.State) {
		t.Helper()
		is, err := w.Look(a.ctx, a)
		check.That(t, err == nil && is == want, "%q, %v; want %q", is, err, want)
	}
	look(wanted(), "there")

	a.sim.DeleteNode("gpu-1")
	w := wanted()
	look(w, "")
	a.sim.AddNode("gpu-1", nil)
	look(w, "")
	must.OK(t, w.Make(a.ctx, a, "there"))
	look(w, "there")
}
