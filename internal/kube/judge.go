// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// judge says why a try failed.
func (c *Client) judge(ctx context.Context, r call, t answer, err error) *Error {
	if t.status == 0 {
		return c.judgeLine(ctx, err)
	}
	e := &Error{Why: Refused, Status: t.status, after: retryAfter(t.header.Get("Retry-After"), c.now())}
	message, causes := words(t.body)
	e.causes = causes
	e.Cause = worded{fmt.Sprintf("the API server says %d: %s", t.status, message), nil}
	switch t.status {
	case http.StatusUnauthorized:
		c.unauthorized(e, t)
	case http.StatusForbidden:
		c.forbidden(e, r, message)
	case http.StatusNotFound:
		e.Why = Missing
	case http.StatusConflict:
		e.Why = Conflict
	case http.StatusTooManyRequests, http.StatusRequestTimeout:
		e.Why, e.retry = Busy, true
		for _, cause := range causes { // of an eviction: the budget that does not let it
			e.Because = append(e.Because, clean(cause, 300))
		}
	}
	if t.status >= 500 && t.status != http.StatusNotImplemented {
		e.Why, e.retry = Busy, true
	}
	if t.status >= 300 && t.status < 400 {
		e.Cause = fmt.Errorf("%s redirects (%d), which no API server does", c.server, t.status)
	}
	if e.Why == Busy && e.after > 0 {
		e.Because = append(e.Because, fmt.Sprintf("The server asks to come back in %v.", e.after.Round(time.Second)))
	}
	return e
}

// words returns what a server said, and whether that was only the general sentence for its status.
func words(body []byte) (message string, causes []string) {
	var r refusal
	if json.Unmarshal(body, &r) != nil || r.Kind != "Status" { // a proxy or load balancer in the server's place
		return or(clean(string(body), 300), "nothing"), nil
	}
	if r.Details != nil {
		for _, cause := range r.Details.Causes {
			causes = append(causes, cause.Message)
		}
	}
	return r.Message, causes
}

func (c *Client) unauthorized(e *Error, t answer) {
	e.Why = Unauthorized
	shown := or(c.login.about, "no credentials")
	e.Cause = worded{"the API server rejects the credentials (401): it got " + shown, e.Cause}
	if user := c.login.user(); user != "" {
		e.Because = append(e.Because, "The certificate is of "+user+".")
	}
	if off := c.now().Sub(t.date); !t.date.IsZero() && (off > time.Minute || off < -time.Minute) {
		way := "ahead of"
		if off < 0 {
			way, off = "behind", -off
		}
		e.Because = append(e.Because, fmt.Sprintf("The machine's clock is %s %s the server's.", span(off), way))
		e.Try = append(e.Try, "timedatectl   # is the clock right?")
	}
	switch l := c.login; {
	case l.exec != nil:
		e.Because = append(e.Because, "The cluster must know the cloud identity that "+l.exec.argv[0]+" speaks for (on EKS: an access entry, or aws-auth).")
	case l.certFile != "":
		e.Because = append(e.Because, "Another cluster than the one that signed it may answer at "+c.server+".")
		e.Try = append(e.Try, "openssl x509 -noout -issuer -enddate -in "+l.certFile+"   # is the issuer this cluster's CA?")
	case l.tokenFile != "" || l.token != "":
		e.Because = append(e.Because, "A ServiceAccount's token ends with it, and with the pod that it is bound to.")
		e.Try = append(e.Try, "kubectl create token NAME   # for a ServiceAccount; write it where the old one was")
	}
}

func (c *Client) forbidden(e *Error, r call, message string) {
	e.Why = Forbidden
	who, told := c.login.user(), denial(message)
	switch {
	case who != "":
	case told != nil:
		who = told[1]
	default:
		who = "the identity (" + or(c.login.about, "no credentials") + ")"
	}
	e.Cause = worded{fmt.Sprintf("%s may not %s it: %s", who, r.verb, message), e.Cause}
	if told != nil { // the server's sentence says the same once more
		e.Cause = worded{fmt.Sprintf("%s may not %s it", who, r.verb), e.Cause}
		e.Because = append(e.Because, "The API server says: "+message)
	}
	switch node := strings.HasPrefix(who, "system:node:"); {
	case strings.Contains(message, "is not allowed to modify"): // NodeRestriction, admitNode in its admission.go
		e.Because = append(e.Because, "The admission plugin NodeRestriction keeps a node's own identity from this, whatever its roles are.")
		e.Try = append(e.Try, "name the kubeconfig of a ServiceAccount that may patch nodes under [node] kubeconfig")
	case e.causes != nil: // its message says what to change
		e.Because = append(e.Because, "An admission policy of the cluster denies it, whatever its roles are.")
	case node:
		e.Because = append(e.Because, "A kubelet's identity may only reach its own node, and what runs there.")
	default:
		e.Try = append(e.Try, grant(told)...)
	}
}

// denial is which user lacks which verb on what, by what a server without more to say says of it: apiserver,
// pkg/endpoints/handlers/responsewriters/errors.go, forbiddenMessage.
func denial(message string) []string {
	return regexp.MustCompile(`User "([^"]+)" cannot ([a-z]+) resource "([a-z/]+)"`).FindStringSubmatch(message)
}

// grant says how a cluster's administrator gives the right that was lacking. The right to a Node is given together with what
// else we ask of it: the server names one missing right at a time.
func grant(refused []string) []string {
	if refused == nil {
		return []string{"give it a ClusterRole with this verb on this object"}
	}
	user, verbs, what := refused[1], refused[2], refused[3]
	if what == "nodes" || what == "nodes/status" {
		verbs, what = "get,patch", "nodes,nodes/status"
	}
	role := "gpuadm-" + strings.NewReplacer("nodes,nodes/status", "node", "/", "-").Replace(what)
	subject, name := "--user="+host.ShellWord(user), user
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		subject, name = "--serviceaccount="+host.ShellWord(rest), rest
	}
	name = regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "-")
	return []string{
		"as the cluster's administrator, once: kubectl create clusterrole " + role + " --verb=" + verbs + " --resource=" + what,
		"and: kubectl create clusterrolebinding gpuadm-" + strings.Trim(name, "-") + " --clusterrole=" + role + " " + subject,
	}
}

// judgeLine says why there was no answer.
func (c *Client) judgeLine(ctx context.Context, err error) *Error {
	if later := (host.Later{}); errors.As(err, &later) {
		return &Error{Why: Unreachable, Cause: err}
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // what it adds is the URL
	}
	if err == nil {
		err = errors.New("no answer")
	}
	if e := c.untrusted(err); e != nil {
		return e
	}
	at := c.server
	e := &Error{Why: Unreachable, Cause: worded{at + " does not answer: " + err.Error(), err}, retry: passing(err)}
	lookup := (*net.DNSError)(nil)
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		e.Cause, e.retry = worded{at + " does not answer in time", err}, true
	case ctx.Err() != nil:
		e.Cause, e.retry = worded{"the wait for " + at + " was ended: " + context.Cause(ctx).Error(), ctx.Err()}, false
	case errors.Is(err, errLarge):
		e.Why, e.Cause, e.retry = Refused, err, false
	case errors.As(err, &lookup):
		e.Try = append(e.Try, "getent hosts "+clean(lookup.Name, 253)+"   # does the machine find the name?")
	case strings.Contains(err.Error(), "internal error:"):
		e.Why, e.Cause, e.retry = Refused, err, false
	}
	return e
}

// passing tells a line that was cut, or not there, from what would be the same again. net/http has no types for some of these.
func passing(err error) bool {
	if line := net.Error(nil); errors.As(err, &line) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPIPE) {
		return true
	}
	text := err.Error()
	for _, sign := range []string{"http2: ", "http: server closed idle connection", "transport connection broken", "stream error: "} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// untrusted says whose certificate is not trusted and whose would be; nil if it is not that.
func (c *Client) untrusted(err error) *Error {
	e := &Error{Why: Untrusted}
	verify, invalid, name := (*tls.CertificateVerificationError)(nil), x509.CertificateInvalidError{}, x509.HostnameError{}
	alert, noTLS := tls.AlertError(0), tls.RecordHeaderError{}
	switch {
	case errors.As(err, &verify):
		if len(verify.UnverifiedCertificates) > 0 {
			shown := verify.UnverifiedCertificates[0]
			e.Because = append(e.Because, fmt.Sprintf("It shows a certificate of %q, issued by %q.",
				clean(shown.Subject.String(), 200), clean(shown.Issuer.String(), 200)))
		}
		e.Because = append(e.Because, "Trusted is: "+c.trusts+".")
		e.Cause = worded{c.server + " cannot be trusted: " + verify.Err.Error(), err}
		switch {
		case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
			e.Because = append(e.Because, "The machine's clock says "+c.now().UTC().Format("2006-01-02 15:04 MST")+".")
			e.Try = append(e.Try, "timedatectl   # is the clock right?")
		case errors.As(err, &name):
			e.Because = append(e.Because, "The server is asked by a name that its certificate does not have.")
		default:
			e.Because = append(e.Because, "A proxy on the way may have answered in its place, or the cluster has a new certificate authority.")
		}
	case errors.As(err, &alert):
		e.Cause = worded{c.server + " ends the TLS handshake: " + err.Error(), err}
		e.Because = append(e.Because, "It got "+or(c.login.about, "no credentials")+".")
	case errors.As(err, &noTLS), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		e.Cause = worded{"what answers at " + c.server + " does not speak TLS", err}
	default:
		return nil
	}
	return e
}
