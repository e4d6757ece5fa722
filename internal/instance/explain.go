// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// serviceAt is the address of EC2's metadata service.
const serviceAt = "169.254.169.254"

// strange returns the error for an answer that is not in the service's format.
func strange(what string) *trouble.Error {
	return &trouble.Error{
		What:    "cannot read EC2's metadata: " + what + " is not of the form that the service gives",
		Because: []string{"another server than EC2's metadata service answers at " + serviceAt + ", or the answer was changed on the way"},
		Try:     []string{"ip route get " + serviceAt + "    shows where requests go", "iptables-save | grep " + serviceAt + "    shows who takes them: for example kube2iam or kiam"},
	}
}

// unreached returns the error for a service that does not answer, or that fails.
func unreached(f outcome) *trouble.Error {
	e := &trouble.Error{Passing: true, Try: []string{"ip route get " + serviceAt + "    shows where requests go", "nft list ruleset | grep " + serviceAt + "    shows a firewall's rule against it"}}
	switch {
	case f.status == http.StatusTooManyRequests:
		e.What = "cannot ask EC2's metadata service: it is asked too often (status 429)"
		e.Because = []string{"each machine may ask a bounded number of times a second; another program on this one uses them up"}
		e.Try = []string{"wait, and find the program: ss -tnp dst " + serviceAt}
	case f.status >= 500:
		e.What = fmt.Sprintf("cannot ask EC2's metadata service: it fails (status %d)", f.status)
		e.Try = []string{"wait: gpuadm retried for " + patience.String()}
	case f.connected:
		e.What = "cannot ask EC2's metadata service: " + serviceAt + " takes the connection, and does not answer in time or in full"
		e.Because = []string{"gpuadm retried for " + patience.String()}
	default:
		e.What = fmt.Sprintf("cannot reach EC2's metadata service at %s in %s", serviceAt, patience)
		e.Because = []string{"there is no route to it yet, or a firewall or network policy forbids it"}
	}
	return e
}

// tooLong returns the error for an answer that does not end.
func tooLong() *trouble.Error {
	e := strange("an answer of more than 256 KiB")
	e.Err = errTooLong
	return e
}

// explain says why EC2's metadata service refused, and how to fix it.
func (e *imdsDoor) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause // the caller has stopped
	}
	f := e.outcome()
	id := e.name()
	problem := &trouble.Error{}
	switch token := f.method == http.MethodPut; {
	case f.tooLong:
		return tooLong()
	case token && f.connected && f.status == 0:
		problem = &trouble.Error{
			What: "cannot ask EC2's metadata service: it does not answer the request for a token, though the connection is open",
			Because: []string{
				"the answer may go as many hops as the instance's hop limit says, mostly 1: none is left on the way into a container's network",
			},
			Try: []string{
				"run in the host's network: hostNetwork: true",
				"aws ec2 modify-instance-metadata-options --instance-id " + id + " --http-put-response-hop-limit 2",
			},
		}
	case f.status == http.StatusForbidden:
		problem = &trouble.Error{
			What:    "cannot ask EC2's metadata service: it is turned off for this instance (status 403)",
			Because: []string{"the same is answered to requests that come through a proxy; gpuadm sends none through one"},
			Try:     []string{"aws ec2 modify-instance-metadata-options --instance-id " + id + " --http-endpoint enabled"},
		}
	case f.status == http.StatusUnauthorized:
		problem = &trouble.Error{
			What:    "cannot ask EC2's metadata service: it does not take the token that it gave (status 401)",
			Because: []string{"something on the way changes requests, or answers in the service's place"},
			Try:     []string{"iptables-save | grep " + serviceAt + "    shows who takes them: for example kube2iam or kiam"},
		}
	case f.status == http.StatusNotFound && !token && f.path != identityPath:
		return &trouble.Error{What: "cannot find " + clean(f.path, 100) + " in EC2's metadata: status 404", Err: errMissing}
	case f.status == http.StatusNotFound, f.status == http.StatusMethodNotAllowed, f.status == http.StatusBadRequest:
		problem = &trouble.Error{
			What:    fmt.Sprintf("cannot ask EC2's metadata service: what answers does not know its version 2 (status %d)", f.status),
			Because: []string{"gpuadm uses IMDSv2 only: its token protects against programs that are made to fetch a URL"},
			Try:     []string{"iptables-save | grep " + serviceAt + "    shows who answers in its place", "where the machine is not in EC2: leave [join] out, and have another tool join it"},
		}
	case !retryable(f, err):
		problem = strange(clean(f.path, 100))
	default:
		problem = unreached(f)
	}
	problem.Err = err
	return problem
}

// identityPath is the path of the instance identity document.
const identityPath = "/latest/dynamic/instance-identity/document"

// name returns the instance's id for commands to type.
func (e *imdsDoor) name() string {
	if e.id == "" {
		return "ID"
	}
	return e.id
}

// clean makes a foreign text fit for output: one line without control characters, at most most
// bytes long.
func clean(s string, most int) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError, unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r): // control characters, and those that turn the writing's direction
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, " ")))
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// plain says whether s looks like a cloud's name: printable ASCII without blanks, quotes and
// brackets, not too long.
func plain(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte("\"'`\\<>{}$|;&", c) >= 0 {
			return false
		}
	}
	return true
}

// keep returns the entries of a table that are fit for output, at most a hundred.
func keep(table map[string]string) map[string]string {
	var kept map[string]string
	for k, v := range table {
		if !plain(k) || len(kept) == 100 || len(v) > 512 || clean(v, 512) != v {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[k] = v
	}
	return kept
}
