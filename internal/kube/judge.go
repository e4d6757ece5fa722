// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
)

// judge says why a try failed: it got an error, or an answer that is no success.
func (c *Client) judge(ctx context.Context, r call, a answer, err error) *fault {
	if err != nil {
		return c.judgeSilence(ctx, err)
	}

	message, causes := words(a.body)
	e := &fault{
		why:    Refused,
		status: a.status,
		cause:  worded{fmt.Sprintf("the API server says %d: %s", a.status, message), nil},
		denial: causes,
		after:  retryAfter(a.header),
	}

	switch a.status {
	case http.StatusUnauthorized:
		c.unauthorized(e, a)
	case http.StatusForbidden:
		c.forbidden(e, r, message)
	case http.StatusNotFound:
		e.why = Missing
	case http.StatusConflict:
		e.why = Conflict
	case http.StatusTooManyRequests, http.StatusRequestTimeout:
		e.why = Busy
		e.retry = true
		for _, cause := range causes { // of an eviction: the disruption budget that forbids it
			e.because = append(e.because, clean(cause, 300))
		}
	}

	if a.status >= 500 && a.status != http.StatusNotImplemented {
		e.why = Busy
		e.retry = true
	}
	if a.status >= 300 && a.status < 400 {
		e.cause = fmt.Errorf("%s redirects (%d), which no API server does", c.server, a.status)
	}
	if e.why == Busy && e.after > 0 {
		wait := e.after.Round(time.Second)
		e.because = append(e.because, fmt.Sprintf("The server asks to come back in %v.", wait))
	}

	return e
}

// retryAfter returns the pause that the server asks for, up to some days; 0 if it asks for none.
func retryAfter(header http.Header) time.Duration {
	seconds, _ := strconv.Atoi(header.Get("Retry-After")) // an API server writes no date
	return time.Duration(min(max(seconds, 0), 1<<20)) * time.Second
}

// words returns the message and the causes in a server's answer. An answer without a Status, as of
// a proxy or a load balancer, is the message itself.
func words(body []byte) (message string, causes []string) {
	var r refusal
	if json.Unmarshal(body, &r) != nil || r.Kind != "Status" {
		return cmp.Or(clean(string(body), 300), "nothing"), nil
	}

	if r.Details != nil {
		for _, cause := range r.Details.Causes {
			causes = append(causes, cause.Message)
		}
	}

	return r.Message, causes
}

// unauthorized completes the fault of an answer 401.
func (c *Client) unauthorized(e *fault, a answer) {
	e.why = Unauthorized
	text := "the API server rejects the credentials (401): it got " + c.login.described()
	e.cause = worded{text, e.cause}

	if user := c.login.user(); user != "" {
		e.because = append(e.because, "The certificate is of "+user+".")
	}

	ahead := c.now().Sub(a.date)
	if !a.date.IsZero() && ahead.Abs() > time.Minute {
		side := "behind"
		if ahead > 0 {
			side = "ahead of"
		}
		by := span(ahead.Abs())
		e.because = append(e.because, fmt.Sprintf("The machine's clock is %s %s the server's.", by, side))
		e.try = append(e.try, checkClock)
	}

	l := c.login
	switch {
	case l.exec != nil:
		const mustKnow = "The cluster must know the cloud identity that %s speaks for (%s)."
		e.because = append(e.because, fmt.Sprintf(mustKnow, l.exec.argv[0], instance.IdentityHint))
	case l.hasCertificate():
		e.because = append(e.because, "A cluster other than the one that signed it may answer at "+c.server+".")
		e.try = append(e.try, l.showIssuer()+"   # is the issuer this cluster's CA?")
	case l.tokenFile != "" || l.token != "":
		e.because = append(e.because, "A token ends when its ServiceAccount is deleted, or the pod that it is bound to.")
		e.try = append(e.try, "kubectl create token NAME   # for a ServiceAccount; write it where the old one was")
	}
}

// showIssuer is the command that shows the issuer of the client certificate.
func (l *login) showIssuer() string {
	const show = "openssl x509 -noout -issuer -enddate"
	if l.certFile != "" {
		return show + " -in " + host.ShellWord(l.certFile)
	}
	return "kubectl config view --raw --minify --kubeconfig=" + host.ShellWord(l.kubeconfig) +
		" -o jsonpath='{.users[0].user.client-certificate-data}' | base64 -d | " + show
}

// checkClock is what to type where a clock may be wrong.
const checkClock = "timedatectl   # is the clock right?"

// forbidden completes the fault of an answer 403.
func (c *Client) forbidden(e *fault, r call, message string) {
	e.why = Forbidden
	user := c.login.user()
	who := cmp.Or(user, "the identity ("+c.login.described()+")")
	e.cause = worded{fmt.Sprintf("%s may not %s it: %s", who, r.verb, message), e.cause}
	if e.denial != nil { // its message says what to change
		e.because = append(e.because, "An admission policy of the cluster denies it, whatever its roles are.")
		return
	}

	isKubelet := strings.HasPrefix(user, "system:node:")
	if r.right != "" && !isKubelet {
		e.try = append(e.try, "as the cluster's administrator, give it a ClusterRole with the right to "+r.right)
	}
	if isKubelet || user == "" {
		const ownNodeOnly = "A kubelet's identity may only reach its own node, and what runs there; NodeRestriction keeps it from taints and some labels, whatever its roles are."
		e.because = append(e.because, ownNodeOnly)
		e.try = append(e.try, "if it is kubelet's, set kubeconfig in [node] to that of a ServiceAccount that may patch nodes")
	}
}

// judgeSilence says why a request got no answer.
func (c *Client) judgeSilence(ctx context.Context, err error) *fault {
	if errors.As(err, new(host.Later)) {
		return &fault{why: Unreachable, cause: err}
	}

	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // url.Error only adds the URL
	}
	if e := c.untrusted(err); e != nil {
		return e
	}

	e := &fault{
		why:   Unreachable,
		cause: worded{c.server + " does not answer: " + err.Error(), err},
		retry: true,
	}
	var lookup *net.DNSError
	switch {
	case errors.Is(err, Slow):
		e.why = Slow
		e.cause = worded{c.server + " began to answer, and did not end its answer in time", err}
		e.retry = ctx.Err() == nil
	case errors.Is(context.Cause(ctx), errSilent):
		e.cause = worded{c.server + " does not answer in time", err}
	case ctx.Err() != nil:
		e.cause = worded{"the wait for " + c.server + " was ended: " + context.Cause(ctx).Error(), ctx.Err()}
		e.retry = false
	case errors.Is(err, errLarge), errors.Is(err, host.ErrTouches):
		e.why = Refused
		e.cause = err
		e.retry = false
	case errors.As(err, &lookup):
		e.try = append(e.try, "getent hosts "+clean(lookup.Name, 253)+"   # does the machine find the name?")
	}

	return e
}

// untrusted names the certificate that is not trusted and the trusted authorities; nil for another
// error.
func (c *Client) untrusted(err error) *fault {
	var (
		verify *tls.CertificateVerificationError
		alert  tls.AlertError
		noTLS  tls.RecordHeaderError
	)
	e := &fault{why: Untrusted}

	switch {
	case errors.As(err, &verify):
		e.cause = worded{c.server + " cannot be trusted: " + verify.Err.Error(), err}
		c.explainCertificate(e, verify)
	case errors.As(err, &alert):
		e.cause = worded{c.server + " ends the TLS handshake: " + err.Error(), err}
		e.because = append(e.because, "It got "+c.login.described()+".")
	case errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		e.cause = worded{"what answers at " + c.server + " does not speak TLS", err}
	default:
		return nil
	}

	return e
}

// explainCertificate adds to a fault which certificate the server shows, and why it is not trusted.
func (c *Client) explainCertificate(e *fault, verify *tls.CertificateVerificationError) {
	if len(verify.UnverifiedCertificates) > 0 {
		shown := verify.UnverifiedCertificates[0]
		subject := clean(shown.Subject.String(), 200)
		issuer := clean(shown.Issuer.String(), 200)
		e.because = append(e.because, fmt.Sprintf("It shows a certificate of %q, issued by %q.", subject, issuer))
	}

	e.because = append(e.because, "gpuadm trusts "+c.trusts+".")

	var (
		invalid   x509.CertificateInvalidError
		wrongName x509.HostnameError
	)
	switch {
	case errors.As(verify, &invalid) && invalid.Reason == x509.Expired:
		now := c.now().UTC().Format("2006-01-02 15:04 MST")
		e.because = append(e.because, "The machine's clock says "+now+".")
		e.try = append(e.try, checkClock)
	case errors.As(verify, &wrongName):
		e.because = append(e.because, "The server is asked by a name that its certificate does not have.")
	default:
		const otherAuthority = "A proxy on the way may have answered in its place, or the cluster has a new certificate authority."
		e.because = append(e.because, otherAuthority)
	}
}
