// SPDX-License-Identifier: Apache-2.0

// Package kube asks a Kubernetes API server about one node, and changes that node's object there.
//
// It makes the few requests that gpuadm needs (get the Node, patch it, set a condition, create an
// Event, list its pods) and says in plain words why one failed. All requests go through
// internal/host: code that may only look cannot change the cluster either.
package kube

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// agent is the User-Agent of requests.
const agent = "gpuadm"

// Client talks to one API server as one user.
type Client struct {
	server string
	trusts string // the trusted authorities, in words
	login  *login
	base   *url.URL
	http   *http.Client

	now    func() time.Time // the machine's wall clock
	clock  func() time.Time // a monotonic one
	sleep  func(context.Context, time.Duration) error
	jitter func() float64 // from 0 to 1

	limit    time.Duration // for one try
	patience time.Duration // for all tries of one request together
}

// WithToken returns a client that only reads, with a bearer token in memory: a join first asks with
// it whether the cluster accepts the machine.
func WithToken(v host.View, server string, roots []byte, token string, via host.Via) (*Client, error) {
	return newClient(v, v.AskWeb, settings{
		server: server,
		roots:  roots,
		via:    via,
		login:  &login{view: v, token: token, about: "the token that was given"},
	})
}

// web is View.AskWeb or Host.DoWeb.
type web func(host.Web) (http.RoundTripper, error)

// newClient makes a client of settings. It connects to no server yet.
func newClient(v host.View, open web, s settings) (*Client, error) {
	base, err := serverURL(s.server)
	if err != nil {
		return nil, s.unusable(err)
	}
	trusts, err := s.trusts()
	if err != nil {
		return nil, s.unusable(err)
	}

	transport, err := open(host.Web{
		Via:   s.via,
		Roots: s.roots,
		Cert:  s.login.certificate,
	})
	if err != nil {
		return nil, s.unusable(err)
	}

	s.login.from = s.from
	s.login.server = s.server
	s.login.roots = s.roots
	return &Client{
		server: s.server,
		trusts: trusts,
		login:  s.login,
		base:   base,
		http:   &http.Client{Transport: transport, CheckRedirect: noRedirects},

		now:    v.Now,
		clock:  time.Now,
		sleep:  host.Pause,
		jitter: rand.Float64,

		limit:    oneTry,
		patience: Patience,
	}, nil
}

// unusable returns the error for settings that no client can be made of.
func (s settings) unusable(err error) error {
	f := fault{
		why:   Broken,
		cause: err,
		waits: errors.As(err, new(host.Later)), // a root folder has no network; first boot has one
	}
	return f.to("use", cmp.Or(s.from, "API server"))
}

// noRedirects: an API server sends none, and no other server may get the token.
func noRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// serverURL checks a server's address. The text may contain a password, so no error quotes it.
func serverURL(server string) (*url.URL, error) {
	u, err := url.Parse(server)
	switch {
	case server == "":
		return nil, errors.New("it names no server")
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("its server is not a URL such as https://api.example:6443")
	case u.User != nil:
		return nil, errors.New("its server has a user or a password in the URL, which is not supported")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, errors.New("its server is reached by plain http, so any listener could read the credentials")
	}

	return u, nil
}

func loopback(name string) bool {
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// trusts says in words which certificate authorities the client trusts.
func (s settings) trusts() (string, error) {
	machine := "the machine's own certificate authorities"
	if s.roots == nil {
		if s.via.CAFile != "" {
			machine += " and those in " + s.via.CAFile
		}
		return machine, nil
	}

	names, err := authorities(s.roots)
	if err != nil {
		return "", err
	}
	return strings.Join(names, ", ") + " (from " + cmp.Or(s.from, "what was given") + ")", nil
}

// authorities names the subjects of the first certificates in a PEM text.
func authorities(text []byte) (names []string, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && len(names) < 4 {
			names = append(names, clean(cert.Subject.String(), 100))
		}
	}

	if names == nil {
		return nil, errors.New("its certificate authority is not a certificate in PEM form")
	}
	return names, nil
}
