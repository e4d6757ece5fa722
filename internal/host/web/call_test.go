// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// daemon answers gRPC on a socket as a real one does, or worse.
func daemon(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d.sock")
	l := must.Get(net.Listen("unix", socket))(t)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: answer, Protocols: p}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return socket
}

func TestCall(t *testing.T) {
	grpc := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	}

	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		err    string
	}{
		"answers": {func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			grpc(w)
			w.Write(append([]byte{0, 0, 0, 0, 2}, body[5:]...))
			w.Header().Set("Grpc-Status", "0")
		}, "hi", ""},
		"no such service": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "12")
			w.Header().Set("Grpc-Message", "unknown service runtime%2Ev1")
		}, "", "gRPC status 12: unknown service runtime.v1"},
		"fails at the end": {func(w http.ResponseWriter, _ *http.Request) {
			grpc(w)
			w.Write([]byte{0, 0, 0, 0, 0})
			w.Header().Set("Grpc-Status", "14")
			w.Header().Set("Grpc-Message", "later")
		}, "", "gRPC status 14: later"},
		"cut short": {func(w http.ResponseWriter, _ *http.Request) { grpc(w); w.Write([]byte{0, 0, 0, 0, 9, 'x'}) }, "", "not one whole gRPC message"},
		"not gRPC":  {func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }, "", "HTTP status 404"},
		"too long":  {func(w http.ResponseWriter, _ *http.Request) { grpc(w); w.Write(make([]byte, host.MaxAnswer+9)) }, "", "not one whole gRPC message"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Call(t.Context(), daemon(t, c.answer), "/runtime.v1.RuntimeService/Version", []byte("hi"))
			check.That(t, c.err != "" || (err == nil && string(got) == c.want), "got %q, %v", got, err)
			check.That(t, c.err == "" || (err != nil && strings.Contains(err.Error(), c.err)), "got %q, %v; want %s", got, err, c.err)
		})
	}

	t.Run("hangs", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		hangs := daemon(t, func(_ http.ResponseWriter, r *http.Request) {
			stop()
			<-r.Context().Done()
		})
		_, err := Call(ctx, hangs, "/runtime.v1.RuntimeService/Version", []byte("hi"))
		check.That(t, errors.Is(err, context.Canceled), "%v", err)
	})
	refused := (*host.CallError)(nil)
	_, err := unframe(&http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Grpc-Status": {"12"}},
	}, nil)
	check.That(t, errors.As(err, &refused) && refused.Code == host.Unimplemented, "no such service: %v", err)
	_, err = Call(t.Context(), "/nosuch/socket", "/x", nil)
	check.That(t, err != nil && strings.Contains(err.Error(), "no such file"), "no such socket: %v", err)
}

// FuzzUnframe gives the answer of a container engine: what is returned is the one message in it,
// and an error is short.
func FuzzUnframe(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 'h', 'i'}, "0", "", 200)
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 1}, "", "", 200)
	f.Add([]byte{1, 0, 0, 0, 0}, "12", "unknown service runtime%2Ev1", 200)
	f.Add([]byte{}, "13", strings.Repeat("%0a", 20_000), 500)
	f.Fuzz(func(t *testing.T, body []byte, status, message string, code int) {
		h := http.Header{"Grpc-Status": {status}, "Grpc-Message": {message}}
		alloc.Most(t, 10, len(body)+len(status)+len(message), func() {
			for _, r := range []*http.Response{{StatusCode: code, Header: h}, {StatusCode: code, Trailer: h}} {
				got, err := unframe(r, body)
				if err == nil && (status != "" && status != "0" || code != http.StatusOK || string(got) != string(body[5:])) {
					t.Errorf("%q with status %q and code %d: %q", body, status, code, got)
				}
				if err != nil && len(err.Error()) > maxMessage+100 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
			}
		})
	})
}
