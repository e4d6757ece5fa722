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
	// it has to answer. Requests share one, and one that a load balancer or an address translation
	// has forgotten would swallow them until TCP gives it up, after a quarter of an hour:
	// https://github.com/golang/go/issues/30702.
	webPing = 5 * time.Second
)

// Transport is what both kinds of request go through.
func (c Client) Transport(w host.Web) (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if w.Roots != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(w.Roots) {
			return nil, errors.New("cannot trust the other side: what was given holds no certificate in PEM form")
		}
	} else if err := c.trust(config, w.Via.CAFile); err != nil {
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
func (c Client) trust(config *tls.Config, file string) error {
	if file == "" {
		return nil
	}
	pem, err := c.files.ReadFile(file)
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
