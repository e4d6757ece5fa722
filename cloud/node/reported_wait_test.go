// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestWaitsTell: a run says at once what it waits for, since when and until when, and then every 15 seconds.
func TestWaitsTell(t *testing.T) {
	a := apiFixture(t, apiSpec)
	said(a, "False", "x", "x")
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["status"].(kubesim.Object)["conditions"] = []any{kubesim.Object{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "cni plugin not initialized"}}
	})
	var told []string
	ctx := converge.Listen(a.ctx, func(_ converge.What, text string) { told = append(told, text) })
	slept := time.Duration(0)
	j := joined{nodeAsk{name: "gpu-1", kubeconfig: apiKubelet, pause: func(_ context.Context, d time.Duration) error { slept += d; return nil }}}
	err := j.Make(ctx, a, isReady)
	if !converge.Passes(err) {
		t.Fatalf("got %v", err)
	}
	first := a.Now()
	if want := int(readyPatience / reportEvery); len(told) < want-2 || len(told) > want+2 {
		t.Errorf("told %d times in %v", len(told), slept)
	}
	if len(told) == 0 || !strings.Contains(told[0], "node gpu-1: it is not ready: KubeletNotReady: cni plugin not initialized; waiting since "+first.Format("15:04")) {
		t.Errorf("told %q", told)
	}
}

// TestWaitsEnd: the time that questions take counts: a silent server does not make a wait of minutes one of hours.
func TestWaitsEnd(t *testing.T) {
	a := apiFixture(t, apiSpec)
	asked := 0
	a.sim.Fail(kubesim.Fault{On: "GET", Times: -1, Status: 503, Do: func(*kubesim.Server) { asked++ }})
	r := registered{nodeAsk: nodeAsk{name: "gpu-1", kubeconfig: apiKubelet, pause: func(context.Context, time.Duration) error { a.Advance(30 * time.Second); return nil }}} // as if the question had taken it
	err := r.wait(kube.Within(a.ctx, 0), a, registerPatience, nil)
	if !converge.Passes(err) || asked > 8 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
