// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Web says how an HTTP client of the machine reaches the other side, and whom it trusts. The zero Web goes directly, by no
// proxy, and trusts the machine's own certificates.
type Web struct {
	Socket string // a Unix socket that answers in place of the URL's host; "" for the network
	Via    Via    // proxies, and certificates to trust beside the machine's own
	Roots  []byte // PEM certificates to trust in place of all others; nil for the machine's own and Via.CAFile
	// Cert returns the certificate to show, and is asked at each handshake; nil for none.
	Cert func() (*tls.Certificate, error)
}

const (
	webDial    = 5 * time.Second  // to be connected: who does not answer by then is not there
	webSilence = 30 * time.Second // from a request's end to an answer's beginning

	// webPing is after how long a silent HTTP/2 connection is asked whether it lives, and how long it has to answer. Requests share
	// one, and one that a load balancer or an address translation has forgotten would swallow them until TCP gives it up, after
	// a quarter of an hour: https://github.com/golang/go/issues/30702.
	webPing = 5 * time.Second
)

// errTouches is what a transport that only looks says of a request that would change something.
var errTouches = errors.New("internal error: a request that changes something was made by what only looks")

// AskWeb is View's.
func (l *live) AskWeb(w Web) (http.RoundTripper, error) {
	t, err := l.transport(w)
	if err != nil {
		return nil, err
	}
	return OnlyLooks(t), nil
}

// DoWeb is Host's.
func (l *live) DoWeb(w Web) (http.RoundTripper, error) { return l.transport(w) }

func (f *folder) AskWeb(Web) (http.RoundTripper, error) { return nil, FirstBoot }
func (f *folder) DoWeb(Web) (http.RoundTripper, error)  { return nil, FirstBoot }

// transport is what both kinds of request go through.
func (f *Files) transport(w Web) (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if w.Roots != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(w.Roots) {
			return nil, errors.New("cannot trust the other side: what was given holds no certificate in PEM form")
		}
	} else if err := f.trust(config, w.Via.CAFile); err != nil {
		return nil, err
	}
	if w.Cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return w.Cert() }
	}
	if w.Socket != "" {
		return &http.Transport{ResponseHeaderTimeout: webSilence, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", w.Socket)
		}}, nil
	}
	proxies := (&httpproxy.Config{HTTPProxy: w.Via.HTTP, HTTPSProxy: w.Via.HTTPS, NoProxy: strings.Join(w.Via.No, ",")}).ProxyFunc()
	return &http.Transport{
		Proxy:                 func(r *http.Request) (*url.URL, error) { return proxies(r.URL) },
		DialContext:           (&net.Dialer{Timeout: webDial}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: webSilence,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: webPing, PingTimeout: webPing},
	}, nil
}

// trust adds the certificates of a file to the machine's own.
func (f *Files) trust(config *tls.Config, file string) error {
	if file == "" {
		return nil
	}
	pem, err := f.ReadFile(file)
	if err != nil {
		return err
	}
	if config.RootCAs, err = x509.SystemCertPool(); err != nil {
		config.RootCAs = x509.NewCertPool()
	}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("cannot use %s: it holds no certificate in PEM form", file)
	}
	return nil
}

// OnlyLooks lets those requests through a transport that change nothing.
func OnlyLooks(t http.RoundTripper) http.RoundTripper { return looking{t} }

type looking struct{ through http.RoundTripper }

func (l looking) RoundTrip(r *http.Request) (*http.Response, error) {
	if !changesNothing(r) {
		return nil, fmt.Errorf("%w: %s %s", errTouches, r.Method, r.URL.Path)
	}
	return l.through.RoundTrip(r)
}

// changesNothing says whether a request only asks. Some protocols ask by methods that elsewhere change things.
func changesNothing(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPut: // a session token of EC2's metadata service, version 2
		return r.URL.Path == "/latest/api/token"
	case http.MethodPost:
		switch r.URL.Path {
		case "/apis/authentication.k8s.io/v1/selfsubjectreviews", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
			return true // who am I, and what may I: nothing is stored
		}
		return r.Context().Value(looks{}) != nil
	}
	return false
}

type looks struct{}

// Looks marks requests that only look although their method says otherwise: EC2's query API posts everything. What the
// machine's role may do decides the other side.
func Looks(ctx context.Context) context.Context { return context.WithValue(ctx, looks{}, true) }

// CloseIdleConnections lets http.Client close what is left open.
func (l looking) CloseIdleConnections() {
	if c, ok := l.through.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// AskSocket gets what a daemon of the machine says by HTTP at its Unix socket, up to 16 MiB. A Later is where no daemon runs for the
// machine, as in a root folder.
func AskSocket(ctx context.Context, v View, socket, path string) ([]byte, error) {
	through, err := v.AskWeb(Web{Socket: socket})
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: through}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask at %s: %w", socket, err)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("cannot ask at %s: HTTP status %s", socket, res.Status)
	}
	return body, err
}

// maxAnswer is the size in bytes above which an answer to Call is refused.
const maxAnswer = 16 << 20

// maxSaid is how many bytes of what the other side says of its failure are repeated.
const maxSaid = 1 << 10

// Call is View's. A unary gRPC call is one HTTP/2 POST with a five-byte frame before the message
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), which the standard library can do over a socket:
// google.golang.org/grpc would add 4.5 MiB to the binary.
func (l *live) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	answer, err := call(ctx, socket, method, request)
	if err != nil {
		return nil, fail("call", socket, err)
	}
	return answer, nil
}

func call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(append(frame, request...)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	return unframe(res, body)
}

// unframe returns the message of an answer, or what its status says. An answer without a message has its status in the
// headers, others in the trailers.
func unframe(res *http.Response, body []byte) ([]byte, error) {
	for _, h := range []http.Header{res.Header, res.Trailer} {
		if code := h.Get("Grpc-Status"); code != "" && code != "0" {
			text, err := url.PathUnescape(h.Get("Grpc-Message"))
			if err != nil {
				text = h.Get("Grpc-Message")
			}
			message := fmt.Sprintf("gRPC status %s: %s", code, text)
			return nil, errors.New(strings.ToValidUTF8(message[:min(len(message), maxSaid)], "?"))
		}
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s", res.Status)
	}
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:5])) != len(body)-5 {
		return nil, fmt.Errorf("the answer is not one whole gRPC message")
	}
	return body[5:], nil
}

// ProtoFields calls see for each field of a message that holds bytes.
func ProtoFields(message []byte, see func(field int, value []byte) error) error {
	return ProtoAll(message, func(field int, value []byte, _ uint64) error {
		if value == nil {
			return nil
		}
		return see(field, value)
	})
}

// ProtoAll calls see for each field of a message that holds bytes or a number: value is nil for a number. The module protobuf reads its
// own program's file at each start of it, to have no two programs agree on what a text looks like.
// Source: https://protobuf.dev/programming-guides/encoding/
func ProtoAll(message []byte, see func(field int, value []byte, number uint64) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errNoProto
		}
		message = message[n:]
		var value []byte
		var number uint64
		size, known := 0, true
		switch tag & 7 {
		case 0:
			if number, size = binary.Uvarint(message); size <= 0 {
				return errNoProto
			}
		case 2:
			long, n := binary.Uvarint(message)
			if n <= 0 || long > uint64(len(message)-n) {
				return errNoProto
			}
			size = n + int(long)
			value = message[n:size:size]
		case 1:
			size, known = 8, false
		case 5:
			size, known = 4, false
		default: // groups are of a syntax that CRI and the pods' resources never had
			return errNoProto
		}
		if size > len(message) {
			return errNoProto
		}
		message = message[size:]
		if !known {
			continue
		}
		if err := see(int(tag>>3), value, number); err != nil {
			return err
		}
	}
	return nil
}

var errNoProto = errors.New("cannot read the answer: it is no message of protocol buffers")
