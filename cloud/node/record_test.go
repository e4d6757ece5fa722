// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestRecordedLabels: a label that kubelet put on when it registered the node goes once node.toml drops it, and no other.
func TestRecordedLabels(t *testing.T) {
	a := apiFixture(t, "\n[node]\nlabels = { \"example.com/rack\" = \"r7\", \"example.com/row\" = \"3\" }\ngpu_labels = false\n")
	a.sim.DeleteNode("gpu-1")
	a.sim.AddNode("gpu-1", map[string]string{"example.com/rack": "r7", "example.com/row": "3", "theirs.example/x": "1"})
	a.apply()
	if shown := a.shown(); !strings.Contains(shown, "example.com/rack=r7") || !strings.Contains(shown, "example.com/row=3") {
		t.Fatalf("gpuadm's labels are gone:\n%s", shown)
	}
	before := len(a.sim.Requests())
	if a.apply(); len(a.sim.Requests()) > before+1 {
		t.Errorf("a converged node costs %v", a.sim.Requests()[before:])
	}
	a.spec = "\n[node]\nlabels = { \"example.com/rack\" = \"r7\" }\ngpu_labels = false\n"
	a.Advance(answerServes * 2)
	a.apply()
	if shown := a.shown(); strings.Contains(shown, "example.com/row") || !strings.Contains(shown, "example.com/rack=r7") || !strings.Contains(shown, "theirs.example/x=1") {
		t.Errorf("after row was dropped from node.toml:\n%s", shown)
	}
	a.Advance(answerServes * 2)
	must.Get(a.engine().Undo(a.ctx, a, "all", nil))(t)
	if shown := a.shown(); !strings.Contains(shown, "example.com/rack=r7") || !strings.Contains(shown, "theirs.example/x=1") {
		t.Errorf("undo took off what kubelet had registered:\n%s", shown)
	}
}
