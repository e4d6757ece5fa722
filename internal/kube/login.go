// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
)

// login has the credentials that gpuadm sends to the server. It reads files again for each request:
// kubelet and Kubernetes rotate them.
type login struct {
	view  host.View
	about string // in words, for errors

	token     string
	tokenFile string
	certFile  string // or "client-certificate-data" where certPEM is set
	keyFile   string
	certPEM   []byte
	keyPEM    []byte
	exec      *plugin

	from, server string // for exec plugins and errors
	roots        []byte

	mu   sync.Mutex
	got  *credential // the plugin's last answer
	last string      // the token last sent, to keep it out of messages
}

// described says in words what was sent.
func (l *login) described() string { return cmp.Or(l.about, "no credentials") }

// show returns the bearer token for one request, "" for none. It fails for credentials that cannot
// work: to an expired certificate the server would only answer "unauthorized".
func (l *login) show(ctx context.Context) (token string, err *fault) {
	switch {
	case l.exec != nil && l.certFile == "" && l.token == "" && l.tokenFile == "":
		got, err := l.ask(ctx)
		if err != nil {
			return "", err
		}
		token = got.token
	case l.tokenFile != "":
		text, err := small(l.view, l.tokenFile)
		if err != nil {
			return "", l.unread(err)
		}
		token = strings.TrimSpace(string(text))
		if token == "" {
			return "", &fault{why: Expired, cause: fmt.Errorf("the token file %s is empty", l.tokenFile)}
		}
	default:
		token = l.token
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", &fault{why: Broken, cause: errors.New(l.about + ": it has characters that no token has")}
	}
	l.mu.Lock()
	l.last = token
	l.mu.Unlock()
	if l.certFile == "" {
		return token, nil
	}
	cert, bad := l.pair()
	if bad != nil {
		return "", bad
	}
	return token, l.valid(cert.Leaf, l.about)
}

// certificate is host.Web's Cert, called at each handshake.
func (l *login) certificate() (*tls.Certificate, error) {
	if l.certFile == "" {
		return &tls.Certificate{}, nil // none: crypto/tls wants an empty one
	}
	cert, bad := l.pair()
	if bad != nil {
		return nil, bad.cause
	}
	return cert, nil
}

// pair reads certificate and key.
func (l *login) pair() (*tls.Certificate, *fault) {
	cert, key := l.certPEM, l.keyPEM
	var err error
	if cert == nil {
		if cert, err = small(l.view, l.certFile); err != nil {
			return nil, l.unread(err)
		}
	}
	if key == nil {
		if key, err = small(l.view, l.keyFile); err != nil {
			return nil, l.unread(err)
		}
	}
	pair, err := keyPair(cert, key)
	if err != nil {
		return nil, &fault{why: Broken, cause: fmt.Errorf("%s: %w", l.about, err)}
	}
	return pair, nil
}

// keyPair is tls.X509KeyPair with a parsed leaf, and an error that quotes nothing.
func keyPair(cert, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil && pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	if err != nil {
		if block, _ := pem.Decode(cert); block == nil {
			return nil, errors.New("it holds no certificate in PEM form")
		}
		return nil, errors.New("certificate and key cannot be used, or do not belong together")
	}
	return &pair, nil
}

// unread is the error for a credential file that cannot be read.
func (l *login) unread(err error) *fault {
	e := &fault{why: Broken, cause: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.why, e.waits = Expired, true
		e.because = []string{"It appears once the machine has joined the cluster."}
		e.try = []string{"journalctl -u kubelet   # why it has no certificate"}
	case errors.Is(err, fs.ErrPermission):
		e.try = []string{"run gpuadm as root"}
	}
	return e
}

// valid judges a certificate by the machine's clock.
func (l *login) valid(cert *x509.Certificate, what string) *fault {
	const form = "2006-01-02 15:04 MST"
	now := l.view.Now()
	clock := "The machine's clock says " + now.UTC().Format(form) + "."
	switch {
	case now.Before(cert.NotBefore):
		return &fault{
			why: Expired, waits: true, because: []string{clock}, try: []string{checkClock},
			cause: fmt.Errorf("%s holds only from %s on", what, cert.NotBefore.UTC().Format(form)),
		}
	case !now.After(cert.NotAfter):
		return nil
	}
	e := &fault{why: Expired, because: []string{clock}, cause: fmt.Errorf(
		"%s has run out on %s, %s ago", what, cert.NotAfter.UTC().Format(form), span(now.Sub(cert.NotAfter)))}
	name, isNode := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
	if !isNode {
		return e
	}
	// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/troubleshooting-kubeadm/#kubelet-client-cert
	e.because = append(e.because, "kubelet renews its certificate while it runs; a machine that was off for long has to join again.")
	e.try = []string{
		"journalctl -u kubelet | grep -i certificate   # why kubelet has not renewed it",
		"with kubeadm, on a control plane node: kubeadm kubeconfig user --org system:nodes --client-name " +
			clean("system:node:"+name, 300) + " > kubelet.conf; here put it in place of the " + cmp.Or(l.from, "kubeconfig") +
			", remove /var/lib/kubelet/pki/kubelet-client*, and restart kubelet",
	}
	return e
}

// span says a long time in one figure.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	}
	return fmt.Sprintf("%d minutes", int(d.Minutes()))
}

// user returns the user in the certificate, "" if only the server knows the user.
func (l *login) user() string {
	if l.certFile == "" {
		return ""
	}
	if pair, bad := l.pair(); bad == nil {
		return clean(pair.Leaf.Subject.CommonName, 300)
	}
	return ""
}

// hide removes the token from a text.
func (l *login) hide(s string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, secret := range []string{l.last, l.token} {
		if len(secret) >= 4 {
			s = strings.ReplaceAll(s, secret, mask.Mark)
		}
	}
	return mask.Message(s)
}
