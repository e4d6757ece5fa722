// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
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
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("kubeconfig", fmt.Sprintf("{current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: x, user: {tokenFile: token}}]}", s.URL, b64(own)))
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	from, clients := From{Kubeconfig: filepath.Join(dir, "kubeconfig")}, new(Clients)
	ask := func(v host.View) error {
		c, err := clients.Ask(v, from)
		if err == nil {
			_, err = c.Node(t.Context(), "gpu-1")
		}
		return err
	}
	plan := host.Snapshot(h)
	if err := ask(plan); err == nil {
		t.Error("asked without a token")
	}
	for _, token := range []string{"first", "second"} {
		put("token", token)
		for what, v := range map[string]host.View{"the run": h, "the plan": plan} {
			if err := ask(v); shown != "Bearer "+token { // the server knows none of them
				t.Errorf("%s has shown %q, not %q (%v)", what, shown, token, err)
			}
		}
	}
}
