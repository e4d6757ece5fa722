// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
)

// agent is the User-Agent of requests.
const agent = "gpuadm"

// From says where a client's server and credentials come from. One of Kubeconfig and Pod is set.
type From struct {
	Kubeconfig string   // a kubeconfig on the machine: kubelet's own, most often
	Pod        bool     // the ServiceAccount of the pod that we run in
	Judged     bool     // an operator names the kubeconfig: gpuadm checks the owners of the files that it names
	Via        host.Via // proxies, and certificates to trust where the kubeconfig names none
}

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
	limit  time.Duration  // for one try

	patience time.Duration // for all tries of one request together
}

// WithToken returns a client for reading, with a bearer token in memory: for a test before a join.
func WithToken(v host.View, server string, roots []byte, token string, via host.Via) (*Client, error) {
	l := &login{view: v, token: token, about: "the token that was given"}
	return start(v, v.AskWeb, setting{server: server, roots: roots, via: via, login: l})
}

// web is View.AskWeb or Host.DoWeb.
type web func(host.Web) (http.RoundTripper, error)

// setting has all inputs of a client.
type setting struct {
	from   string // the file that it was read from, for errors; "" if there is none
	server string
	roots  []byte // PEM
	caFile string // the file with them, if the kubeconfig does not contain them
	via    host.Via
	login  *login
}

// settingOf reads the server and the credentials of a client.
func settingOf(v host.View, from From) (s setting, err error) {
	if from.Pod {
		s, err = ofPod(v)
	} else {
		s, err = ofKubeconfig(v, from.Kubeconfig, from.Judged)
	}
	if err != nil {
		return s, err
	}
	if s.via.HTTPS == "" { // else the kubeconfig names a proxy of its own
		s.via = from.Via
	}
	s.via.CAFile = from.Via.CAFile
	return s, nil
}

func start(v host.View, w web, s setting) (*Client, error) {
	fail := func(err error) (*Client, error) {
		f := fault{why: Broken, cause: err, waits: errors.As(err, new(host.Later))} // a root folder has no network: first boot has
		return nil, f.to("use", cmp.Or(s.from, "API server"))
	}
	base, err := serverURL(s.server)
	if err != nil {
		return fail(err)
	}
	trusts := "the machine's own certificate authorities"
	switch {
	case s.roots != nil:
		names, err := authorities(s.roots)
		if err != nil {
			return fail(err)
		}
		trusts = strings.Join(names, ", ") + " (from " + cmp.Or(s.from, "what was given") + ")"
	case s.via.CAFile != "":
		trusts += " and those in " + s.via.CAFile
	}
	through, err := w(host.Web{Via: s.via, Roots: s.roots, Cert: s.login.certificate})
	if err != nil {
		return fail(err)
	}
	s.login.from, s.login.server, s.login.roots = s.from, s.server, s.roots
	return &Client{
		server: s.server,
		trusts: trusts,
		login:  s.login,
		base:   base,
		http:   &http.Client{Transport: through, CheckRedirect: stay},

		now:      v.Now,
		clock:    time.Now,
		sleep:    host.Pause,
		jitter:   rand.Float64,
		limit:    oneTry,
		patience: Patience,
	}, nil
}

// stay follows no redirect: an API server sends none, and no other server may get the token.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// serverURL checks a server's address. The text may contain a password, so no error quotes it.
func serverURL(server string) (*url.URL, error) {
	u, err := url.Parse(server)
	switch {
	case server == "":
		return nil, errors.New("it names no server")
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, errors.New("its server is no URL such as https://api.example:6443")
	case u.User != nil:
		return nil, errors.New("its server has a user or a password in the URL, which is not supported")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, errors.New("its server is reached by plain http, so any listener could read the credentials")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("its server is no URL such as https://api.example:6443")
	}
	return u, nil
}

func loopback(name string) bool {
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// authorities names the subjects of the certificates in a PEM text.
func authorities(text []byte) (names []string, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && len(names) < 4 {
			names = append(names, clean(cert.Subject.String(), 100))
		}
	}
	if names == nil {
		return nil, errors.New("its certificate authority is no certificate in PEM form")
	}
	return names, nil
}

const podFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// ofPod reads the server and the credentials that Kubernetes gives to each pod:
// https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
func ofPod(v host.View) (s setting, err error) {
	env, err := v.ReadFile("/proc/self/environ") // this process's own; a simulated machine has another
	are := map[string]string{}
	for line := range strings.SplitSeq(string(env), "\x00") {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		are[key] = value
	}
	name, port := are["KUBERNETES_SERVICE_HOST"], are["KUBERNETES_SERVICE_PORT"]
	switch {
	case err != nil:
	case name == "" || port == "":
		err = errors.New("KUBERNETES_SERVICE_HOST and _PORT are not set: this is no pod")
	default:
		s.roots, err = small(v, podFolder+"/ca.crt")
	}
	if err != nil {
		f := fault{why: Broken, cause: err, try: []string{"give the pod a serviceAccountName and leave automountServiceAccountToken on"}}
		return s, f.to("use", "the pod's ServiceAccount")
	}
	s.from, s.server = "the pod's ServiceAccount", "https://"+net.JoinHostPort(name, port)
	s.login = &login{view: v, tokenFile: podFolder + "/token", about: "the pod's ServiceAccount token"}
	return s, nil
}

// maxSmall is the largest size in bytes of a kubeconfig, a certificate or a token.
const maxSmall = 1 << 20

// small reads a file of at most maxSmall bytes.
func small(v host.View, name string) ([]byte, error) {
	if i, err := v.Stat(name); err == nil && i.Size > maxSmall {
		return nil, fmt.Errorf("cannot read %s: it is larger than %d MiB", name, maxSmall>>20)
	}
	return v.ReadFile(name)
}

// Clients are the clients of one run on one machine. There is one for each kubeconfig, kept while
// the kubeconfig is unchanged: when thousands of nodes start together, the API server makes one TLS
// handshake for each client, not for each request, and an exec plugin runs once. The zero Clients
// is ready for use.
type Clients struct {
	OneTry bool // no request is retried: for tests with a server that never answers

	mu   sync.Mutex
	made map[string]kept
}

// kept is a client, and the mark of its settings.
type kept struct {
	client *Client
	mark   [sha256.Size]byte
}

// Ask returns a client that only reads.
func (c *Clients) Ask(v host.View, from From) (*Client, error) {
	return c.client("ask", v, v.AskWeb, from)
}

// Do returns a client that may change objects of the cluster.
func (c *Clients) Do(h host.Host, from From) (*Client, error) {
	return c.client("do", h, h.DoWeb, from)
}

func (c *Clients) client(verb string, v host.View, w web, from From) (*Client, error) {
	client, err := c.keptClient(verb, v, w, from)
	if err == nil && c.OneTry {
		client = client.Within(0)
	}
	return client, err
}

// keptClient returns the kept client if its settings are unchanged, else a new one, and keeps that.
func (c *Clients) keptClient(verb string, v host.View, w web, from From) (*Client, error) {
	v = view.Machine(v) // a client is kept, and reads its credentials again for each request
	s, err := settingOf(v, from)
	if err != nil {
		return nil, err
	}
	mark, ok := s.mark()
	if !ok {
		return start(v, w, s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	place := fmt.Sprintf("%s %+v", verb, from)
	old := c.made[place]
	if old.client != nil && old.mark == mark {
		return old.client, nil
	}
	made, err := start(v, w, s)
	if err != nil {
		return nil, err
	}
	if old.client != nil {
		old.client.http.CloseIdleConnections()
	}
	if c.made == nil {
		c.made = map[string]kept{}
	}
	c.made[place] = kept{made, mark}
	return made, nil
}

// mark identifies settings by all inputs of a connection or a credential. There is none while a
// certificate, the client's own or a trusted one, cannot be read.
func (s setting) mark() (mark [sha256.Size]byte, ok bool) {
	l, trusted, pair := s.login, []byte(nil), new(tls.Certificate)
	if s.roots == nil && s.via.CAFile != "" { // the CA file may change under the same name
		var err error
		if trusted, err = small(l.view, s.via.CAFile); err != nil {
			return mark, false
		}
	}
	if l.certFile != "" { // it is a link whose target kubelet changes
		var bad *fault
		if pair, bad = l.pair(); bad != nil {
			return mark, false
		}
	}
	return sha256.Sum256(fmt.Appendf(nil, "%q %#v %q %q %q %q %q %q %q %#v %q %q",
		s.server, s.via, l.token, l.tokenFile, l.certFile, l.keyFile, s.roots, l.certPEM, l.keyPEM, l.exec, trusted, pair.Certificate)), true
}
