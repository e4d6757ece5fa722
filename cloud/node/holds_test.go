// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
)

// TestHolds: status says what keeps pods off at a boot, and that a taint does not hold those that are bound already.
func TestHolds(t *testing.T) {
	each(func(c startupCase) {
		s, f := c.make()
		_, on, _, err := startupTaint(s, f)
		want := "nothing keeps pods away"
		switch {
		case err != nil:
			want = ""
		case (c.gate == "drop-in" || c.gate == "nodeadm") && c.open == "closed":
			want = "kubelet waits until the GPUs are ready, and pods that are bound to the node wait with it"
		case on:
			want = "those that are bound to the node already come back with kubelet"
		}
		if got := holds(s, f); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	})
	n := joins.Recorded(t, "ubuntu24-h100", nil)
	for text, want := range map[string]string{"[runtime]\n": "", "[node]\n": "nothing keeps pods away before the GPUs are ready: no account here may take a startup taint off"} {
		if got, err := Holds(t.Context(), n.View(), joins.Spec(t, text)); err != nil || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	got, err := Holds(t.Context(), joins.Recorded(t, "no-gpu", nil).View(), joins.Spec(t, "[node]\n"))
	check.That(t, got == "" && err == nil, "without GPUs: %q %v", got, err)
}
