// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Serve puts a server on the node's network, by the host that requests name: "169.254.169.254",
// "api.example:6443". What it holds is elsewhere: a power cut of the node does not touch it. Each
// request that changes something is a touch.
func (n *Node) Serve(name string, h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[name] = h
}

// AskWeb is host.View's.
func (n *Node) AskWeb(w host.Web) (http.RoundTripper, error) {
	if !n.Live() {
		return nil, host.FirstBoot
	}
	return host.OnlyLooks(web{n, w, n.look}, w), nil
}

// DoWeb is host.Host's.
func (n *Node) DoWeb(w host.Web) (http.RoundTripper, error) {
	if !n.Live() {
		return nil, host.FirstBoot
	}
	return web{n, w, n.touch}, nil
}

// web is a simulated network. There is no TLS on it: Roots and Cert are for the real one.
type web struct {
	node *Node
	how  host.Web
	step func(func() error) error // a look or a touch
}

func (w web) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	step := w.step
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		step = w.node.look
	}
	err = step(func() error {
		if err := r.Context().Err(); err != nil {
			return err
		}
		server := w.node.servers[cmp.Or(w.how.Socket, r.URL.Host)]
		switch {
		case server == nil && w.how.Socket != "":
			// Daemons of a simulated node do not talk unless a test has them.
			return host.Later{Until: "a real machine"}
		case server == nil:
			return fmt.Errorf("dial tcp: lookup %s: no such host", r.URL.Hostname())
		}

		// The client sees that a server took the connection, answer or not.
		trace := httptrace.ContextClientTrace(r.Context())
		if trace != nil && trace.GotConn != nil {
			trace.GotConn(httptrace.GotConnInfo{})
		}
		rec := httptest.NewRecorder()
		rec.Header().Set("Date", w.node.now.UTC().Format(http.TimeFormat))
		server.ServeHTTP(rec, r)
		if err := r.Context().Err(); err != nil { // the client gave up meanwhile
			return err
		}
		answer = rec.Result()
		answer.Request = r
		return nil
	})
	if r.Body != nil {
		r.Body.Close()
	}
	return answer, err
}
