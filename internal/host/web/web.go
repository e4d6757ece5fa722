// SPDX-License-Identifier: Apache-2.0

// Package web makes the machine's HTTP and gRPC calls, and downloads what is checked for size and
// digest.
package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"golang.org/x/net/http/httpproxy"
)

const (
	webDial    = 5 * time.Second  // to be connected
	webSilence = 30 * time.Second // from a request's end to an answer's beginning

	// webPing is after how long a silent HTTP/2 connection is asked whether it lives, and how long
	// it has to answer. Requests share a connection. If a load balancer or an address translation
	// has forgotten it, requests get no answer until TCP gives up, after a quarter of an hour:
	// https://github.com/golang/go/issues/30702.
	webPing = 5 * time.Second
)

// Transport returns what requests go through, those that look and those that change something.
func (c Client) Transport(w host.Web) (*http.Transport, error) {
	config, err := c.tlsConfig(w)
	if err != nil {
		return nil, err
	}
	if w.Socket != "" {
		return &http.Transport{
			ResponseHeaderTimeout: webSilence,
			DialContext:           dialSocket(w.Socket),
		}, nil
	}

	proxies := httpproxy.Config{
		HTTPProxy:  w.Via.HTTP,
		HTTPSProxy: w.Via.HTTPS,
		NoProxy:    strings.Join(w.Via.No, ","),
	}
	proxy := proxies.ProxyFunc()
	return &http.Transport{
		Proxy:                 func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
		DialContext:           (&net.Dialer{Timeout: webDial}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: webSilence,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: webPing, PingTimeout: webPing},
	}, nil
}

// dialSocket returns a dialer that connects to a Unix socket, whatever the address is.
func dialSocket(socket string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
}

// tlsConfig says which certificates a client trusts, and which it shows.
func (c Client) tlsConfig(w host.Web) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case w.Roots != nil:
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(w.Roots) {
			return nil, errors.New("cannot trust the other side: what was given holds no certificate in PEM form")
		}
	case w.Via.CAFile != "":
		roots, err := c.systemRootsWith(w.Via.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = roots
	}

	if w.Cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return w.Cert()
		}
	}

	return config, nil
}

// systemRootsWith returns the machine's own certificates with those of a file.
func (c Client) systemRootsWith(file string) (*x509.CertPool, error) {
	pem, err := c.files.ReadFile(file)
	if err != nil {
		return nil, err
	}

	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("cannot use %s: it holds no certificate in PEM form", file)
	}
	return roots, nil
}
