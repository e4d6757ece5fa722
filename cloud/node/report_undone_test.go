// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestUndoOfSilentCluster: gpuadm names an API server that does not answer, or has no time, and waits for it, and the next
// undo restores the Node.
func TestUndoOfSilentCluster(t *testing.T) {
	for name, fault := range map[string]kubesim.Fault{
		"busy":             {Times: -1, Status: http.StatusServiceUnavailable},
		"throttles":        {Times: -1, Status: http.StatusTooManyRequests},
		"takes no changes": {Times: -1, Status: http.StatusServiceUnavailable, On: "PATCH"},
	} {
		a := apiFixture(t, apiSpec)
		a.apply()
		a.Advance(time.Minute)
		a.sim.Fail(fault)
		_, err := a.engine().Undo(kube.Within(a.ctx, 0), a, "", nil)
		tr := (*trouble.Error)(nil)
		if !trouble.Passes(err) || !errors.As(err, &tr) || strings.Contains(err.Error(), "changed since") || len(tr.Try) == 0 {
			t.Errorf("%s: %+v", name, err)
		}
		a.sim.Heal()
		a.Advance(time.Minute)
		if _, err := a.engine().Undo(a.ctx, a, "", nil); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := a.shown(); strings.Contains(got, "example.com") || strings.Contains(got, "nvidia.com/gpu=") || !strings.Contains(got, undoneReason) {
			t.Errorf("%s: the Node is\n%s", name, got)
		}
	}
}
