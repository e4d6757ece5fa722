// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestTLS asks a real server on this machine over TLS: whom we trust, and what we show.
func TestTLS(t *testing.T) {
	ca := newAuthority(t, "right CA")
	cert, key := ca.client(t, "system:node:gpu-1", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	sim := kubesim.New(kubesim.User{})
	sim.AddNode("gpu-1", nil)
	sim.Token("known", kubesim.Node("gpu-1"))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 1 && r.TLS.PeerCertificates[0].Subject.CommonName == "system:node:gpu-1" {
			r.Header.Set("Authorization", "Bearer known")
		}
		sim.ServeHTTP(w, r)
	}))
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})

	h := must.Get(host.Open("/"))(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "k")
	try := func(server string, roots []byte) error {
		t.Helper()
		text := fmt.Sprintf("{current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: x, user: {client-certificate: c.pem, client-key: c.pem}}]}", server, b64(roots))
		for name, data := range map[string]string{"k": text, "c.pem": string(cert) + string(key)} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
		}
		c, err := new(Clients).Do(h, From{Kubeconfig: config})
		must.OK(t, err)
		(&naps{}).in(c)
		_, err = c.Node(t.Context(), "gpu-1")
		return err
	}
	check.OK(t, try(s.URL, own))
	check.That(t, !wants(t, try(s.URL, ca.pem), Untrusted, "cannot be trusted", "Trusted is: CN=right CA", `issued by "O=Acme Co"`).Passing, "waiting does not help")
	wants(t, try("https://localhost:"+s.URL[len("https://127.0.0.1:"):], own), Untrusted, "a name that its certificate does not have")

	plain := httptest.NewServer(sim)
	defer plain.Close()
	wants(t, try("https"+plain.URL[len("http"):], own), Untrusted, "does not speak TLS")
	plain.Close()
	check.That(t, wants(t, try("https"+plain.URL[len("http"):], own), Unreachable, "connection refused", "after 8 tries").Passing, "waiting helps")
}

// TestHang wants a server that never answers left within the time that is given.
func TestHang(t *testing.T) {
	c, sim, _ := fixture(t)
	sim.Fail(kubesim.Fault{Hang: true, Times: -1})
	c.limit = time.Millisecond
	_, err := c.Node(t.Context(), "gpu-1")
	wants(t, err, Unreachable, "does not answer in time")
}
