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
	certFile  string // "" if the kubeconfig has certPEM
	keyFile   string // "" if it has keyPEM
	certPEM   []byte
	keyPEM    []byte
	exec      *plugin

	from, server string // for exec plugins and errors
	kubeconfig   string // its file, for errors; "" if there is none
	roots        []byte

	mu   sync.Mutex
	got  *credential // the plugin's last answer
	last string      // the token last sent, to keep it out of messages
}

// described says in words what was sent.
func (l *login) described() string { return cmp.Or(l.about, "no credentials") }

// hasCertificate reports whether there is a client certificate.
func (l *login) hasCertificate() bool { return l.certPEM != nil || l.certFile != "" }

// bearer returns the bearer token for one request, "" for none. It fails for credentials that
// cannot work: to an expired certificate the server would only answer "unauthorized".
func (l *login) bearer(ctx context.Context) (token string, bad *fault) {
	token, bad = l.currentToken(ctx)
	if bad != nil {
		return "", bad
	}
	notInTokens := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	if strings.ContainsFunc(token, notInTokens) {
		return "", &fault{
			why:   Broken,
			cause: errors.New(l.about + ": it has characters that no token has"),
		}
	}

	l.mu.Lock()
	l.last = token
	l.mu.Unlock()

	if !l.hasCertificate() {
		return token, nil
	}
	cert, bad := l.keyPair()
	if bad != nil {
		return "", bad
	}
	return token, l.checkDates(cert.Leaf)
}

// currentToken returns the token of the exec plugin, of the file or of the kubeconfig, "" for none.
func (l *login) currentToken(ctx context.Context) (token string, bad *fault) {
	onlyExec := !l.hasCertificate() && l.token == "" && l.tokenFile == ""
	switch {
	case l.exec != nil && onlyExec:
		got, bad := l.ask(ctx)
		if bad != nil {
			return "", bad
		}
		return got.token, nil
	case l.tokenFile != "":
		return l.readToken()
	}

	return l.token, nil
}

// readToken reads the token file, which kubelet rewrites when it rotates the token.
func (l *login) readToken() (token string, bad *fault) {
	text, err := readSmall(l.view, l.tokenFile)
	if err != nil {
		return "", credentialFault(err)
	}
	token = strings.TrimSpace(string(text))
	if token == "" {
		return "", &fault{
			why:   Expired,
			cause: fmt.Errorf("the token file %s is empty", l.tokenFile),
		}
	}

	return token, nil
}

// certificate is host.Web's Cert, called at each handshake.
func (l *login) certificate() (*tls.Certificate, error) {
	if !l.hasCertificate() {
		return &tls.Certificate{}, nil // none: crypto/tls wants an empty one
	}
	cert, bad := l.keyPair()
	if bad != nil {
		return nil, bad.cause
	}
	return cert, nil
}

// keyPair reads certificate and key.
func (l *login) keyPair() (*tls.Certificate, *fault) {
	cert, bad := l.pemText(l.certPEM, l.certFile)
	if bad != nil {
		return nil, bad
	}
	key, bad := l.pemText(l.keyPEM, l.keyFile)
	if bad != nil {
		return nil, bad
	}

	pair, err := parsePair(cert, key)
	if err != nil {
		return nil, &fault{why: Broken, cause: fmt.Errorf("%s: %w", l.about, err)}
	}
	return pair, nil
}

// pemText returns the text in the kubeconfig, or that of the file if the kubeconfig has none.
func (l *login) pemText(inline []byte, file string) ([]byte, *fault) {
	if inline != nil {
		return inline, nil
	}
	text, err := readSmall(l.view, file)
	if err != nil {
		return nil, credentialFault(err)
	}
	return text, nil
}

// parsePair is tls.X509KeyPair with a parsed leaf, and an error that quotes nothing.
func parsePair(cert, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil && pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	if err == nil {
		return &pair, nil
	}

	if block, _ := pem.Decode(cert); block == nil {
		return nil, errors.New("it holds no certificate in PEM form")
	}
	return nil, errors.New("certificate and key cannot be used, or do not belong together")
}

// credentialFault returns the fault for a credential file that cannot be read.
func credentialFault(err error) *fault {
	e := &fault{why: Broken, cause: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.why = Expired
		e.waits = true
		e.because = []string{"It appears once the machine has joined the cluster."}
		e.try = []string{"journalctl -u kubelet   # why it has no certificate"}
	case errors.Is(err, fs.ErrPermission):
		e.try = []string{"run gpuadm as root"}
	}

	return e
}

// checkDates compares a certificate's dates with the machine's clock.
func (l *login) checkDates(cert *x509.Certificate) *fault {
	const form = "2006-01-02 15:04 MST"
	now := l.view.Now()
	clock := "The machine's clock says " + now.UTC().Format(form) + "."

	switch {
	case now.Before(cert.NotBefore):
		return &fault{
			why:     Expired,
			cause:   fmt.Errorf("%s holds only from %s on", l.about, cert.NotBefore.UTC().Format(form)),
			because: []string{clock},
			try:     []string{checkClock},
			waits:   true,
		}
	case !now.After(cert.NotAfter):
		return nil
	}

	const expired = "%s has run out on %s, %s ago"
	e := &fault{
		why:     Expired,
		cause:   fmt.Errorf(expired, l.about, cert.NotAfter.UTC().Format(form), span(now.Sub(cert.NotAfter))),
		because: []string{clock},
	}
	node, isNode := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
	if isNode {
		l.explainKubeletRenewal(e, node)
	}
	return e
}

// explainKubeletRenewal adds to a fault why kubelet's certificate can expire, and how to get a new
// one.
// Source:
// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/troubleshooting-kubeadm/#kubelet-client-cert
func (l *login) explainKubeletRenewal(e *fault, node string) {
	e.because = append(e.because, "kubelet renews its certificate while it runs; a machine that was off for long has to join again.")

	user := clean("system:node:"+node, 300)
	kubeconfig := cmp.Or(l.from, "kubeconfig")
	e.try = []string{
		"journalctl -u kubelet | grep -i certificate   # why kubelet has not renewed it",
		"with kubeadm, on a control plane node: kubeadm kubeconfig user --org system:nodes --client-name " + user +
			" > kubelet.conf; here put it in place of the " + kubeconfig +
			", remove /var/lib/kubelet/pki/kubelet-client*, and restart kubelet",
	}
}

// span says a long time in one figure.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	}

	if d < 2*time.Minute {
		return "a minute"
	}
	return fmt.Sprintf("%d minutes", int(d.Minutes()))
}

// user returns the user in the certificate, "" if only the server knows the user.
func (l *login) user() string {
	if !l.hasCertificate() {
		return ""
	}
	pair, bad := l.keyPair()
	if bad != nil {
		return ""
	}
	return clean(pair.Leaf.Subject.CommonName, 300)
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
