// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

func (f *folder) AskWeb(Web) (http.RoundTripper, error) { return nil, firstBoot() }
func (f *folder) DoWeb(Web) (http.RoundTripper, error)  { return nil, firstBoot() }

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
