// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestClientsShare counts the connections to a real server: one for reads, one for writes, and a new one as
// soon as the client certificate changes.
func TestClientsShare(t *testing.T) {
	ca := newAuthority(t, "CA")
	sim := kubesim.New(kubesim.Admin())
	sim.AddNode("gpu-1", nil)
	var connections atomic.Int32
	shown := ""
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = r.TLS.PeerCertificates[0].Subject.CommonName
		sim.ServeHTTP(w, r)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	h, put, from := asking(t, s, "client-certificate: c.pem, client-key: c.pem")
	certify := func(name string) {
		cert, key := ca.client(t, name, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		put("c.pem", string(cert)+string(key))
	}
	clients := new(Clients)
	rounds := func() {
		t.Helper()
		for range 3 {
			ask := must.Get(clients.Ask(h, from))(t)
			do := must.Get(clients.Do(h, from))(t)
			for _, c := range []*Client{ask, do} {
				must.Get(c.Node(t.Context(), "gpu-1"))(t)
			}
		}
	}
	for _, user := range []string{"first", "second"} {
		certify(user)
		connections.Store(0)
		rounds()
		got := connections.Load()
		check.That(t, got == 2 && shown == user, "%d connections, want 2; %q was shown, want %q", got, shown, user)
	}
}

// TestClientsTrust: certificates of authorities that are replaced under the same name are read again, wherever they are
// named: in the kubeconfig, or in [proxy].
func TestClientsTrust(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	h := must.Get(host.Open("/"))(t)
	for name, c := range map[string]struct {
		cluster string
		via     host.Via
	}{
		"kubeconfig": {cluster: ", certificate-authority: ca.pem"},
		"proxy":      {via: host.Via{CAFile: filepath.Join(dir, "ca.pem")}},
	} {
		put("k", "{current-context: x, contexts: [{name: x, context: {cluster: x}}], clusters: [{name: x, cluster: {server: \"https://api.example:6443\""+c.cluster+"}}]}")
		from, clients := From{Kubeconfig: filepath.Join(dir, "k"), Via: c.via}, new(Clients)
		ask := func() *Client {
			t.Helper()
			made := must.Get(clients.Ask(h, from))(t)
			return made
		}
		put("ca.pem", string(newAuthority(t, "before").pem))
		first := ask()
		check.That(t, ask() == first, "%s: nothing has changed, and the client is another", name)
		put("ca.pem", string(newAuthority(t, "after").pem))
		check.That(t, ask() != first, "%s: other authorities are trusted now, and the client is the same", name)
		must.OK(t, os.Remove(filepath.Join(dir, "ca.pem")))
		_, err := clients.Ask(h, from)
		check.That(t, err != nil, "%s: no authority is trusted any more, and there is a client", name)
	}
}

// asking is the machine, with a kubeconfig for a server in a folder of its own, and what puts other files there.
func asking(t *testing.T, s *httptest.Server, user string) (host.Host, func(name, text string), From) {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	put("kubeconfig", fmt.Sprintf("{current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: x, user: {%s}}]}", s.URL, b64(own), user))
	h := must.Get(host.Open("/"))(t)
	return h, put, From{Kubeconfig: filepath.Join(dir, "kubeconfig")}
}
