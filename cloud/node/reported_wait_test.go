// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestWaitsTell: a run says at once what it waits for, since when and until when, and then with each look, every 15 seconds at most.
func TestWaitsTell(t *testing.T) {
	a := apiFixture(t, apiSpec)
	said(a, "False", "x", "x")
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["status"].(kubesim.Object)["conditions"] = []any{kubesim.Object{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "cni plugin not initialized"}}
	})
	var told []string
	ctx := converge.Listen(a.ctx, func(_ converge.What, text string) { told = append(told, text) })
	slept := time.Duration(0)
	j := joined{nodeAsk{who: who{node: "gpu-1", kubelet: apiKubelet}, session: new(Session), pause: func(_ context.Context, d time.Duration) error { slept += d; return nil }}}
	err := j.Make(ctx, a, isReady)
	must.That(t, trouble.Passes(err), "got %v", err)
	first := a.Now()
	most := int(readyPatience/reportEvery) + 2
	check.That(t, len(told) >= most/2 && len(told) <= most, "told %d times in %v", len(told), slept)
	if len(told) == 0 || !strings.Contains(told[0], "node gpu-1: it is not ready: KubeletNotReady: cni plugin not initialized; waiting since "+first.Format("15:04")) {
		t.Errorf("told %q", told)
	}
}

// TestWaitsEnd: the time that questions take counts: a silent server does not make a wait of minutes one of hours.
func TestWaitsEnd(t *testing.T) {
	a := apiFixture(t, apiSpec)
	asked := 0
	a.sim.Fail(kubesim.Fault{On: "GET", Times: -1, Status: 503, Do: func(*kubesim.Server) { asked++ }})
	r := registered{nodeAsk: nodeAsk{who: who{node: "gpu-1", kubelet: apiKubelet}, session: new(Session), pause: func(context.Context, time.Duration) error { a.Advance(30 * time.Second); return nil }}} // as if the question had taken it
	err := r.wait(kube.Within(a.ctx, 0), a, registerPatience, nil)
	check.That(t, trouble.Passes(err) && asked <= 8, "asked %d times: %v", asked, err)
}

// TestWaitsSeldom: a kubelet that is quick is seen at once, and thousands that are slow do not ask the API server every second: in
// five minutes a node asks some forty times, at other moments than its neighbours, and the server's cache answers.
func TestWaitsSeldom(t *testing.T) {
	waits := func() (pauses []time.Duration, asked []string) {
		a := apiFixture(t, apiSpec)
		a.sim.EditNode("gpu-1", func(n kubesim.Object) {
			n["status"].(kubesim.Object)["conditions"] = []any{kubesim.Object{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}}
		})
		j := joined{nodeAsk{who: who{node: "gpu-1", kubelet: apiKubelet}, session: new(Session), pause: func(_ context.Context, d time.Duration) error { pauses = append(pauses, d); return nil }}}
		err := j.Make(a.ctx, a, isReady)
		must.That(t, trouble.Passes(err), "got %v", err)
		return pauses, a.sim.Requests()
	}
	pauses, asked := waits()
	check.That(t, len(asked) >= 20 && len(asked) <= 60, "asked %d times", len(asked))
	for _, r := range asked {
		check.That(t, r == "GET /api/v1/nodes/gpu-1 cached", "asked %s", r)
	}
	early := pauses[0] + pauses[1] + pauses[2]
	check.That(t, early <= 6*time.Second, "the first three pauses take %v", early)
	for i, d := range pauses {
		if d > 15*time.Second || i > 4 && d < 2*time.Second {
			t.Errorf("pause %d is %v", i, d)
		}
	}
	others, _ := waits()
	check.That(t, !slices.Equal(others, pauses), "two nodes ask at the same moments")
}
