// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// silentWay leads to a server. Connections that were made before it goes silent carry nothing any more and are never closed, as
// where a load balancer or an address translation has forgotten them.
type silentWay struct {
	mu  sync.Mutex
	old []chan struct{}
}

func (w *silentWay) serve(at net.Listener, to string) {
	for {
		in, err := at.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		silent := make(chan struct{})
		w.mu.Lock()
		w.old = append(w.old, silent)
		w.mu.Unlock()
		for _, ends := range [][2]net.Conn{{in, out}, {out, in}} {
			go func() {
				part := make([]byte, 32<<10)
				for {
					n, err := ends[0].Read(part)
					select {
					case <-silent:
						_, _ = io.Copy(io.Discard, ends[0])
						return
					default:
					}
					if _, werr := ends[1].Write(part[:n]); err != nil || werr != nil {
						ends[1].Close()
						return
					}
				}
			}()
		}
	}
}

func (w *silentWay) goSilent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, silent := range w.old {
		close(silent)
	}
	w.old = nil
}

// TestDeadConnection: a connection that carries nothing any more is found out within one request, and the next try makes another.
func TestDeadConnection(t *testing.T) {
	sim := kubesim.New(kubesim.Admin())
	sim.AddNode("gpu-1", nil)
	s := httptest.NewUnstartedServer(sim)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.CloseClientConnections()
	at, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer at.Close()
	way := new(silentWay)
	go way.serve(at, s.Listener.Addr().String())
	h, err := host.Open("/")
	must.OK(t, err)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	c := must.Get(start(h, h.DoWeb, setting{server: "https://" + at.Addr().String(), roots: roots, login: &login{view: h}}))(t)
	pings := c.http.Transport.(*http.Transport).HTTP2
	if pings.SendPingTimeout == 0 || pings.PingTimeout == 0 || pings.SendPingTimeout+pings.PingTimeout >= oneTry {
		t.Fatalf("a request of %v asks its connection after %v, for %v", oneTry, pings.SendPingTimeout, pings.PingTimeout)
	}
	pings.SendPingTimeout, pings.PingTimeout = pings.SendPingTimeout/100, pings.PingTimeout/100 // so that the test need not wait
	must.Get(c.Node(t.Context(), "gpu-1"))(t)
	way.goSilent()
	_, err = c.Node(t.Context(), "gpu-1")
	check.That(t, err == nil, "%v", err)
}
