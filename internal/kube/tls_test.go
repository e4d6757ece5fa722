// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host/local"

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

	h := must.Get(local.Open("/"))(t)
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
	check.That(t, !wants(t, try(s.URL, ca.pem), Untrusted, "cannot be trusted", "gpuadm trusts CN=right CA", `issued by "O=Acme Co"`).Passing, "waiting does not help")
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

// authority signs certificates for a test; no other program trusts it.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) authority {
	t.Helper()
	a := authority{}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	a.pem, _, a.key = signed(t, a.cert, nil)
	return a
}

// client signs a client certificate, and returns it with its key, in PEM form.
func (a authority) client(t testing.TB, name string, from, to time.Time) (cert, key []byte) {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
		NotBefore:    from,
		NotAfter:     to,
	}
	cert, key, _ = signed(t, c, &a)
	return cert, key
}

func signed(t testing.TB, c *x509.Certificate, by *authority) (cert, key []byte, private *ecdsa.PrivateKey) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	if by == nil {
		by = &authority{cert: c, key: private}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by.cert, &private.PublicKey, by.key)
	must.OK(t, err)
	text, err := x509.MarshalECPrivateKey(private)
	must.OK(t, err)
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), private
}

// TestClientsShare counts the connections to a real server: one for reads, one for writes, and a
// new one as soon as the client certificate changes.
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

// TestClientsTrust: certificates of authorities that are replaced under the same name are read
// again, wherever they are named: in the kubeconfig, or in [proxy].
func TestClientsTrust(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	h := must.Get(local.Open("/"))(t)
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

// asking is the machine, with a kubeconfig for a server in a folder of its own, and what puts other
// files there.
func asking(t *testing.T, s *httptest.Server, user string) (host.Host, func(name, text string), From) {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	put("kubeconfig", fmt.Sprintf("{current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: x, user: {%s}}]}", s.URL, b64(own), user))
	h := must.Get(local.Open("/"))(t)
	return h, put, From{Kubeconfig: filepath.Join(dir, "kubeconfig")}
}
