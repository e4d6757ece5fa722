// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestClientOutlivesPlan: a client that a plan has made reads its token again for each request of the run that follows.
func TestClientOutlivesPlan(t *testing.T) {
	sim := kubesim.New(kubesim.Admin())
	sim.AddNode("gpu-1", nil)
	shown := ""
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = r.Header.Get("Authorization")
		sim.ServeHTTP(w, r)
	}))
	defer s.Close()
	h, put, from := asking(t, s, "tokenFile: token")
	clients := new(Clients)
	ask := func(v host.View) error {
		c, err := clients.Ask(v, from)
		if err == nil {
			_, err = c.Node(t.Context(), "gpu-1")
		}
		return err
	}
	plan := host.Snapshot(h)
	check.That(t, ask(plan) != nil, "asked without a token")
	for _, token := range []string{"first", "second"} {
		put("token", token)
		for what, v := range map[string]host.View{"the run": h, "the plan": plan} {
			if err := ask(v); shown != "Bearer "+token { // the server knows none of them
				t.Errorf("%s has shown %q, not %q (%v)", what, shown, token, err)
			}
		}
	}
}
