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
)

// judge says why a try failed.
func (c *Client) judge(ctx context.Context, r call, t answer, err error) *fault {
	if t.status == 0 {
		return c.judgeLine(ctx, err)
	}
	after, _ := strconv.Atoi(t.header.Get("Retry-After")) // an API server writes seconds, never a date
	e := &fault{why: Refused, status: t.status, after: time.Duration(min(max(after, 0), 1<<20)) * time.Second}
	message, causes := words(t.body)
	e.denial = causes
	e.cause = worded{fmt.Sprintf("the API server says %d: %s", t.status, message), nil}
	switch t.status {
	case http.StatusUnauthorized:
		c.unauthorized(e, t)
	case http.StatusForbidden:
		c.forbidden(e, r, message)
	case http.StatusNotFound:
		e.why = Missing
	case http.StatusConflict:
		e.why = Conflict
	case http.StatusTooManyRequests, http.StatusRequestTimeout:
		e.why, e.retry = Busy, true
		for _, cause := range causes { // of an eviction: the disruption budget that forbids it
			e.because = append(e.because, clean(cause, 300))
		}
	}
	if t.status >= 500 && t.status != http.StatusNotImplemented {
		e.why, e.retry = Busy, true
	}
	if t.status >= 300 && t.status < 400 {
		e.cause = fmt.Errorf("%s redirects (%d), which no API server does", c.server, t.status)
	}
	if e.why == Busy && e.after > 0 {
		e.because = append(e.because, fmt.Sprintf("The server asks to come back in %v.", e.after.Round(time.Second)))
	}
	return e
}

// words returns the message and the causes in a server's answer; without a Status, the general text
// for the HTTP status.
func words(body []byte) (message string, causes []string) {
	var r refusal
	if json.Unmarshal(body, &r) != nil || r.Kind != "Status" { // a proxy or load balancer may have answered
		return cmp.Or(clean(string(body), 300), "nothing"), nil
	}
	if r.Details != nil {
		for _, cause := range r.Details.Causes {
			causes = append(causes, cause.Message)
		}
	}
	return r.Message, causes
}

func (c *Client) unauthorized(e *fault, t answer) {
	e.why = Unauthorized
	shown := cmp.Or(c.login.about, "no credentials")
	e.cause = worded{"the API server rejects the credentials (401): it got " + shown, e.cause}
	if user := c.login.user(); user != "" {
		e.because = append(e.because, "The certificate is of "+user+".")
	}
	if off := c.now().Sub(t.date); !t.date.IsZero() && off.Abs() > time.Minute {
		way := map[bool]string{true: "ahead of", false: "behind"}[off > 0]
		e.because = append(e.because, fmt.Sprintf("The machine's clock is %s %s the server's.", span(off.Abs()), way))
		e.try = append(e.try, "timedatectl   # is the clock right?")
	}
	switch l := c.login; {
	case l.exec != nil:
		e.because = append(e.because, "The cluster must know the cloud identity that "+l.exec.argv[0]+" speaks for (on EKS: an access entry, or aws-auth).")
	case l.certFile != "":
		e.because = append(e.because, "Another cluster may answer at "+c.server+" than signed it.")
		e.try = append(e.try, "openssl x509 -noout -issuer -enddate -in "+l.certFile+"   # is the issuer this cluster's CA?")
	case l.tokenFile != "" || l.token != "":
		e.because = append(e.because, "A ServiceAccount's token ends with it, and with the pod that it is bound to.")
		e.try = append(e.try, "kubectl create token NAME   # for a ServiceAccount; write it where the old one was")
	}
}

func (c *Client) forbidden(e *fault, r call, message string) {
	e.why = Forbidden
	user := c.login.user()
	who := cmp.Or(user, "the identity ("+cmp.Or(c.login.about, "no credentials")+")")
	e.cause = worded{fmt.Sprintf("%s may not %s it: %s", who, r.verb, message), e.cause}
	if e.denial != nil { // its message says what to change
		e.because = append(e.because, "An admission policy of the cluster denies it, whatever its roles are.")
		return
	}
	kubelet := strings.HasPrefix(user, "system:node:")
	if r.right != "" && !kubelet {
		e.try = append(e.try, "as the cluster's administrator, give it a ClusterRole with the right to "+r.right)
	}
	if kubelet || user == "" {
		e.because = append(e.because, "A kubelet's identity may only reach its own node, and what runs there; NodeRestriction keeps it from taints and some labels, whatever its roles are.")
		e.try = append(e.try, "if it is kubelet's, name the kubeconfig of a ServiceAccount that may patch nodes under [node] kubeconfig")
	}
}

// judgeLine says why a request got no answer.
func (c *Client) judgeLine(ctx context.Context, err error) *fault {
	if later := (host.Later{}); errors.As(err, &later) {
		return &fault{why: Unreachable, cause: err}
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // url.Error only adds the URL
	}
	if err == nil {
		err = errors.New("no answer")
	}
	if e := c.untrusted(err); e != nil {
		return e
	}
	at := c.server
	e := &fault{why: Unreachable, cause: worded{at + " does not answer: " + err.Error(), err}, retry: true}
	lookup := (*net.DNSError)(nil)
	switch {
	case errors.Is(err, Slow):
		e.why, e.cause, e.retry = Slow, worded{at + " has begun to answer, and not ended its answer in time", err}, ctx.Err() == nil
	case errors.Is(context.Cause(ctx), errSilent):
		e.cause, e.retry = worded{at + " does not answer in time", err}, true
	case ctx.Err() != nil:
		e.cause, e.retry = worded{"the wait for " + at + " was ended: " + context.Cause(ctx).Error(), ctx.Err()}, false
	case errors.Is(err, errLarge), errors.Is(err, host.ErrTouches):
		e.why, e.cause, e.retry = Refused, err, false
	case errors.As(err, &lookup):
		e.try = append(e.try, "getent hosts "+clean(lookup.Name, 253)+"   # does the machine find the name?")
	}
	return e
}

// untrusted names the certificate that is not trusted and the trusted authorities; nil for another
// error.
func (c *Client) untrusted(err error) *fault {
	e := &fault{why: Untrusted}
	verify, invalid, name := (*tls.CertificateVerificationError)(nil), x509.CertificateInvalidError{}, x509.HostnameError{}
	alert, noTLS := tls.AlertError(0), tls.RecordHeaderError{}
	switch {
	case errors.As(err, &verify):
		if len(verify.UnverifiedCertificates) > 0 {
			shown := verify.UnverifiedCertificates[0]
			e.because = append(e.because, fmt.Sprintf("It shows a certificate of %q, issued by %q.",
				clean(shown.Subject.String(), 200), clean(shown.Issuer.String(), 200)))
		}
		e.because = append(e.because, "Trusted is: "+c.trusts+".")
		e.cause = worded{c.server + " cannot be trusted: " + verify.Err.Error(), err}
		switch {
		case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
			e.because = append(e.because, "The machine's clock says "+c.now().UTC().Format("2006-01-02 15:04 MST")+".")
			e.try = append(e.try, "timedatectl   # is the clock right?")
		case errors.As(err, &name):
			e.because = append(e.because, "The server is asked by a name that its certificate does not have.")
		default:
			e.because = append(e.because, "A proxy on the way may have answered in its place, or the cluster has a new certificate authority.")
		}
	case errors.As(err, &alert):
		e.cause = worded{c.server + " ends the TLS handshake: " + err.Error(), err}
		e.because = append(e.because, "It got "+cmp.Or(c.login.about, "no credentials")+".")
	case errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		e.cause = worded{"what answers at " + c.server + " does not speak TLS", err}
	default:
		return nil
	}
	return e
}
