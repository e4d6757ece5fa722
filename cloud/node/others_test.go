// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// others adds a condition of another client, written so long ago.
func (a *apiNode) others(kind, status, reason string, age time.Duration) {
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		at := a.Now().Add(-age).UTC().Format(time.RFC3339)
		n["status"].(kubesim.Object)["conditions"] = []any{
			kubesim.Object{"type": "Ready", "status": "True"},
			kubesim.Object{"type": kind, "status": status, "reason": reason, "message": "theirs", "lastHeartbeatTime": at, "lastTransitionTime": at},
		}
	})
}

// TestSecondOwner: a condition that Node Problem Detector writes is refused and stays; nothing about it is reported, and the guard of the
// next boot leaves it. What it has left behind is taken over. The reason is that of NVIDIA/gpu-operator, examples/cluster-autoscaler.
func TestSecondOwner(t *testing.T) {
	const theirs = "GPUReadinessPending"
	for _, status := range []string{"False", "True"} {
		a := apiFixture(t, apiSpec)
		a.others(GPUReady, status, theirs, 20*time.Second)
		_, err := a.engine().Apply(a.ctx, a)
		told := (*trouble.Error)(nil)
		if !errors.As(err, &told) || trouble.Passes(err) || !strings.Contains(told.What, theirs) || !strings.Contains(strings.Join(told.Because, " "), "Node Problem Detector") {
			t.Errorf("got %v", err)
		}
		check.OK(t, a.report(Outcome{Stage: "ready", Err: err}))
		a.Reboot()
		a.others(GPUReady, status, theirs, 20*time.Second)
		_, _ = a.engine().Apply(a.ctx, a)
		if got := a.shown(); !strings.HasSuffix(got, status+" "+theirs+" theirs") || strings.Contains(got, "status-taint") || !strings.Contains(got, "example.com/starting") {
			t.Errorf("the Node is\n%s", got)
		}
		a.others(GPUReady, status, theirs, 11*time.Minute)
		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}

// TestRepairWaits: a node that another component has found at fault gets no pods, and the wait names who acts. The condition is left alone.
func TestRepairWaits(t *testing.T) {
	for _, tt := range []struct{ kind, bad, good, reason, acts string }{
		{"AcceleratedHardwareReady", "False", "True", "NvidiaXID79Error", "EKS's node auto repair"},
		{"GpuMemWatch", "True", "False", "GpuMemWatchIsNotHealthy", "NVSentinel cordons"},
		{"SysLogsXIDError", "True", "False", "SysLogsXIDErrorIsNotHealthy", "NVSentinel cordons"},
	} {
		a := apiFixture(t, apiSpec)
		a.others(tt.kind, tt.bad, tt.reason, time.Hour)
		_, err := a.engine().Apply(a.ctx, a)
		wait := &trouble.Error{}
		if !trouble.Passes(err) || !errors.As(err, &wait) || !strings.Contains(wait.What, tt.kind+"="+tt.bad+" ("+tt.reason+")") || !strings.Contains(strings.Join(wait.Try, " "), tt.acts) {
			t.Errorf("%s: got %v, %q", tt.kind, err, wait.Try)
		}
		got := a.shown()
		check.That(t, strings.Contains(got, "taint example.com/starting") && a.condition() == "", "%s: the Node is\n%s", tt.kind, got)
		c := a.sim.Node("gpu-1")["status"].(kubesim.Object)["conditions"].([]any)[1].(kubesim.Object)
		check.That(t, c["status"] == tt.bad && c["message"] == "theirs", "%s was changed: %v", tt.kind, c)
		a.others(tt.kind, tt.good, "", time.Hour)
		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}
