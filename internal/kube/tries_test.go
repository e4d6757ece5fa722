// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/host/view"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func TestTries(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault kubesim.Fault
		asked int
		why   Why // of what is left after all tries; "": it goes well
		naps  []time.Duration
		words string
	}{
		{"500 once", kubesim.Fault{Status: 500}, 2, "", []time.Duration{firstNap}, ""},
		{"429 twice, says when", kubesim.Fault{Status: 429, RetryAfter: "3", Times: 2}, 3, "", []time.Duration{4 * time.Second, 4 * time.Second}, ""},
		{"503, text", kubesim.Fault{Status: 503, Body: "upstream " + planted, Times: 3}, 4, "", nil, ""},
		{"always 500", kubesim.Fault{Status: 500, Times: -1}, 8, Busy, nil, "after 8 tries"},
		{"always 429", kubesim.Fault{Status: 429, RetryAfter: "7", Times: -1}, 4, Busy, nil, "come back in 7s"},
		{"too far off", kubesim.Fault{Status: 429, RetryAfter: "3600"}, 1, Busy, []time.Duration{}, "come back in 1h"},
		{"a secret in the answer", kubesim.Fault{Status: 503, Body: "it was " + planted, Times: -1}, 8, Busy, nil, "(masked)"},
		{"409", kubesim.Fault{Status: 409, Times: -1}, 1, Conflict, []time.Duration{}, "409"},
		{"400", kubesim.Fault{Status: 400, Times: -1}, 1, Refused, []time.Duration{}, "400"},
		{"501", kubesim.Fault{Status: 501, Times: -1}, 1, Refused, []time.Duration{}, "501"},
		{"302", kubesim.Fault{Status: 302, Times: -1}, 1, Refused, []time.Duration{}, "redirects (302)"},
		{"no JSON", kubesim.Fault{Status: 200, Body: "<html>log in</html>"}, 1, Refused, []time.Duration{}, "cannot be read"},
		{"large", kubesim.Fault{Status: 200, Body: strings.Repeat("x", maxAnswer+1), Times: -1}, 1, Refused, []time.Duration{}, "larger than 16 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, sim, s := fixture(t)
			sim.Fail(tt.fault)
			_, err := c.Node(t.Context(), "gpu-1")
			if tt.why == "" && err != nil {
				t.Errorf("got %v", err)
			} else if tt.why != "" {
				wants(t, err, tt.why, tt.words)
			}

			got := sim.Requests()
			check.That(t, len(got) == tt.asked, "asked %d times, want %d", len(got), tt.asked)
			check.That(t, tt.naps == nil || slices.Equal(s.took, tt.naps) || len(s.took)+len(tt.naps) <= 0, "slept %v, want %v", s.took, tt.naps)
			total := s.at.Sub(time.Unix(1e9, 0))
			check.That(t, total <= Patience, "took %v in all", total)
		})
	}
}

// TestWithin wants the time that is given kept: with none there is one try.
func TestWithin(t *testing.T) {
	c, sim, _ := fixture(t)
	sim.Fail(kubesim.Fault{Status: 500, Times: -1})
	_, err := c.Within(0).Node(t.Context(), "gpu-1")
	check.That(t, wants(t, err, Busy).Passing && len(sim.Requests()) == 1, "it was tried again")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the deadline of this stage"))
	_, err = c.Node(ctx, "gpu-1")
	wants(t, err, Unreachable)
}

func TestUnreachable(t *testing.T) {
	c, sim, s := fixture(t)
	c.login.view.(*simhost.Node).Serve("api.example:6443", nil)
	_, err := c.Node(t.Context(), "gpu-1")
	check.That(t, wants(t, err, Unreachable, "does not answer", server).Passing, "waiting would help")
	s.took = nil
	c.http.Transport = fails{errors.New("http2: server sent GOAWAY and closed the connection")}
	_, err = c.Node(t.Context(), "gpu-1")
	if wants(t, err, Unreachable); len(s.took) == 0 {
		t.Error("a line that was cut is not tried again")
	}
	got := sim.Requests()
	check.That(t, got == nil, "%v", got)
}

type fails struct{ err error }

func (f fails) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// TestSilentServer wants a server that never answers given up in time: the last try has what the
// others have left.
func TestSilentServer(t *testing.T) {
	c, _, s := fixture(t)
	c.http.Transport = silent{s}
	_, err := c.Node(t.Context(), "gpu-1")
	wants(t, err, Unreachable, "after 3 tries")
	total := s.at.Sub(time.Unix(1e9, 0))
	check.That(t, total <= Patience+time.Second && total >= 2*oneTry, "took %v in all", total)
}

// silent is a server that lets each try wait to its end, which comes at once.
type silent struct{ clock *naps }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	ends, _ := r.Context().Deadline()
	s.clock.at = s.clock.at.Add(time.Until(ends).Round(time.Second / 10))
	return nil, context.DeadlineExceeded
}

// TestServerIsSlow: a server that takes ten seconds for each answer is waited for, and asked no
// more than any other; one that fails once, slowly, is asked again.
func TestServerIsSlow(t *testing.T) {
	for asked, faults := range map[int][]kubesim.Fault{1: nil, 2: {{Status: 500}}} {
		c, sim, s := fixture(t)
		for _, f := range faults {
			sim.Fail(f)
		}
		c.http.Transport = slow{s, c.http.Transport}
		_, err := c.Node(t.Context(), "gpu-1")
		check.That(t, err == nil, "%v", err)
		got := sim.Requests()
		check.That(t, len(got) == asked, "asked %d times, want %d", len(got), asked)
		total := s.at.Sub(time.Unix(1e9, 0))
		check.That(t, total >= 10*time.Second && total <= Patience, "took %v in all", total)
	}
}

// slow is a server that takes ten seconds, which pass at once.
type slow struct {
	clock   *naps
	through http.RoundTripper
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	const takes = 10 * time.Second
	if ends, ok := r.Context().Deadline(); ok && time.Until(ends) < takes {
		return silent{s.clock}.RoundTrip(r)
	}
	s.clock.at = s.clock.at.Add(takes)
	return s.through.RoundTrip(r)
}

// silentWay leads to a server. Connections that were made before it goes silent carry nothing any
// more and are never closed, as where a load balancer or an address translation has forgotten them.
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

// TestDeadConnection: a connection that carries nothing any more is found out within one request,
// and the next try makes another.
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
	h, err := local.Open("/")
	must.OK(t, err)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	c := must.Get(newClient(h, h.DoWeb, settings{
		server: "https://" + at.Addr().String(),
		roots:  roots,
		login:  &login{view: h},
	}))(t)
	pings := c.http.Transport.(*http.Transport).HTTP2
	must.That(t, pings.SendPingTimeout != 0 && pings.PingTimeout != 0 && pings.SendPingTimeout+pings.PingTimeout < oneTry,
		"a request of %v asks its connection after %v, for %v", oneTry, pings.SendPingTimeout, pings.PingTimeout)
	pings.SendPingTimeout, pings.PingTimeout = pings.SendPingTimeout/100, pings.PingTimeout/100 // so that the test need not wait
	must.Get(c.Node(t.Context(), "gpu-1"))(t)
	way.goSilent()
	_, err = c.Node(t.Context(), "gpu-1")
	check.That(t, err == nil, "%v", err)
}

// TestClientOutlivesPlan: a client that a plan has made reads its token again for each request of
// the run that follows.
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

	plan := view.Snapshot(h)
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
