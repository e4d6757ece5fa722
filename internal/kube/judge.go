// SPDX-FileCopyrightText: The gpuadm authors
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
	"regexp"
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
	after, _ := strconv.Atoi(t.header.Get("Retry-After")) // an API server writes seconds, and no date
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
		for _, cause := range causes { // of an eviction: the budget that does not let it
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

// words returns what a server said, and whether that was only the general sentence for its status.
func words(body []byte) (message string, causes []string) {
	var r refusal
	if json.Unmarshal(body, &r) != nil || r.Kind != "Status" { // a proxy or load balancer in the server's place
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
	if off := c.now().Sub(t.date); !t.date.IsZero() && (off > time.Minute || off < -time.Minute) {
		way := "ahead of"
		if off < 0 {
			way, off = "behind", -off
		}
		e.because = append(e.because, fmt.Sprintf("The machine's clock is %s %s the server's.", span(off), way))
		e.try = append(e.try, "timedatectl   # is the clock right?")
	}
	switch l := c.login; {
	case l.exec != nil:
		e.because = append(e.because, "The cluster must know the cloud identity that "+l.exec.argv[0]+" speaks for (on EKS: an access entry, or aws-auth).")
	case l.certFile != "":
		e.because = append(e.because, "Another cluster than the one that signed it may answer at "+c.server+".")
		e.try = append(e.try, "openssl x509 -noout -issuer -enddate -in "+l.certFile+"   # is the issuer this cluster's CA?")
	case l.tokenFile != "" || l.token != "":
		e.because = append(e.because, "A ServiceAccount's token ends with it, and with the pod that it is bound to.")
		e.try = append(e.try, "kubectl create token NAME   # for a ServiceAccount; write it where the old one was")
	}
}

func (c *Client) forbidden(e *fault, r call, message string) {
	e.why = Forbidden
	who, told := c.login.user(), lacks(message)
	switch {
	case who != "":
	case told != nil:
		who = told[1]
	default:
		who = "the identity (" + cmp.Or(c.login.about, "no credentials") + ")"
	}
	e.cause = worded{fmt.Sprintf("%s may not %s it: %s", who, r.verb, message), e.cause}
	if told != nil { // the server's sentence says the same once more
		e.cause = worded{fmt.Sprintf("%s may not %s it", who, r.verb), e.cause}
		e.because = append(e.because, "The API server says: "+message)
	}
	switch node := strings.HasPrefix(who, "system:node:"); {
	case strings.Contains(message, "is not allowed to modify"): // NodeRestriction, admitNode in its admission.go
		e.because = append(e.because, "The admission plugin NodeRestriction keeps a node's own identity from this, whatever its roles are.")
		e.try = append(e.try, "name the kubeconfig of a ServiceAccount that may patch nodes under [node] kubeconfig")
	case e.denial != nil: // its message says what to change
		e.because = append(e.because, "An admission policy of the cluster denies it, whatever its roles are.")
	case node:
		e.because = append(e.because, "A kubelet's identity may only reach its own node, and what runs there.")
	default:
		e.try = append(e.try, grant(told)...)
	}
}

// lacks is which user lacks which verb on what, by what a server without more to say says of it: apiserver,
// pkg/endpoints/handlers/responsewriters/errors.go, forbiddenMessage.
func lacks(message string) []string {
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
func (c *Client) judgeLine(ctx context.Context, err error) *fault {
	if later := (host.Later{}); errors.As(err, &later) {
		return &fault{why: Unreachable, cause: err}
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
	e := &fault{why: Unreachable, cause: worded{at + " does not answer: " + err.Error(), err}, retry: true}
	lookup := (*net.DNSError)(nil)
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		e.cause, e.retry = worded{at + " does not answer in time", err}, true
	case ctx.Err() != nil:
		e.cause, e.retry = worded{"the wait for " + at + " was ended: " + context.Cause(ctx).Error(), ctx.Err()}, false
	case errors.Is(err, errLarge):
		e.why, e.cause, e.retry = Refused, err, false
	case errors.As(err, &lookup):
		e.try = append(e.try, "getent hosts "+clean(lookup.Name, 253)+"   # does the machine find the name?")
	case strings.Contains(err.Error(), "internal error:"):
		e.why, e.cause, e.retry = Refused, err, false
	}
	return e
}

// untrusted says whose certificate is not trusted and whose would be; nil if it is not that.
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
	case errors.As(err, &noTLS), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		e.cause = worded{"what answers at " + c.server + " does not speak TLS", err}
	default:
		return nil
	}
	return e
}
