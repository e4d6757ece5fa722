// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestReportAllLost: gpuadm shows the cluster that GPUs are gone, and keeps pods away where only a taint can.
func TestReportAllLost(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.Reboot()
	a.Advance(time.Minute)
	a.facts.GPUs, a.facts.Driver = nil, nil
	must.OK(t, a.report(Outcome{Stage: "preflight", Err: errors.New("cannot go on: no GPU")}))
	if got := a.shown(); !strings.Contains(got, "False PreflightFailed cannot go on: no GPU") || !strings.Contains(got, "status-taint.cluster-autoscaler.kubernetes.io/gpu=failed") {
		t.Errorf("the Node:\n%s", got)
	}
}

// TestReportShuts: a node whose apply fails after a reboot before the guard could shut it is kept free of pods; one that fails
// in the boot that it was ready in is only told of: pods run there.
func TestReportShuts(t *testing.T) {
	for _, reboots := range []bool{true, false} {
		a := apiFixture(t, apiSpec)
		a.apply()
		if reboots {
			a.Reboot()
		}
		a.Advance(time.Minute)
		must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New("x")}))
		if got := strings.Contains(a.shown(), "status-taint"); got != reboots {
			t.Errorf("rebooted %v: pods are kept away: %v\n%s", reboots, got, a.shown())
		}
		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}

// said has the Node carry our condition.
func said(a *apiNode, status, reason, message string) {
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["status"].(kubesim.Object)["conditions"] = []any{kubesim.Object{"type": GPUReady, "status": status, "reason": reason, "message": message}}
	})
}
