// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// serviceAt is the address of EC2's metadata service.
const serviceAt = "169.254.169.254"

// Commands that show why requests do not reach the metadata service. Only root sees the rules of a
// firewall: to another user grep shows none.
const (
	showRoute    = "ip route get " + serviceAt + "    shows where requests go"
	showFirewall = "sudo nft list ruleset | grep " + serviceAt + "    shows a firewall's rule against it"
	showTakers   = "sudo iptables-save | grep " + serviceAt + "    shows who takes them: for example kube2iam or kiam"
)

// malformedAnswer returns the error for an answer that is not in the service's format.
func malformedAnswer(what string) *trouble.Error {
	const otherServer = "another server than EC2's metadata service answers at " + serviceAt
	return &trouble.Error{
		What:    "cannot read EC2's metadata: " + what + " is not of the form that the service gives",
		Because: []string{otherServer + ", or the answer was changed on the way"},
		Try:     []string{showRoute, showTakers},
	}
}

// serviceFailure returns the error for a service that does not answer, or that fails.
func serviceFailure(f outcome) *trouble.Error {
	e := &trouble.Error{
		Passing: true,
		Try:     []string{showRoute, showFirewall},
	}

	switch {
	case f.status == http.StatusTooManyRequests:
		e.What = "cannot ask EC2's metadata service: it is asked too often (status 429)"
		e.Because = []string{"each machine may ask a bounded number of times a second; another program on this one uses them up"}
		e.Try = []string{"wait, and find the program: sudo ss -tnp dst " + serviceAt}
	case f.status >= 500:
		e.What = fmt.Sprintf("cannot ask EC2's metadata service: it fails (status %d)", f.status)
		e.Try = []string{"wait: gpuadm retried for " + patience.String()}
	case f.connected:
		e.What = "cannot ask EC2's metadata service: " + serviceAt +
			" takes the connection, and does not answer in time or in full"
		e.Because = []string{"gpuadm retried for " + patience.String()}
	default:
		e.What = fmt.Sprintf("cannot reach EC2's metadata service at %s in %s", serviceAt, patience)
		e.Because = []string{"there is no route to it yet, or a firewall or network policy forbids it"}
	}

	return e
}

// tooLong returns the error for an answer that does not end.
func tooLong() *trouble.Error {
	e := malformedAnswer("an answer of more than 256 KiB")
	e.Err = errTooLong
	return e
}

// explain says why EC2's metadata service refused, and how to fix it.
func (m *imdsClient) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause // the caller has stopped
	}

	f := m.outcome()
	if f.tooLong {
		return tooLong()
	}
	if f.status == http.StatusNotFound && f.method != http.MethodPut && f.path != identityPath {
		return &trouble.Error{
			What: "cannot find " + clean(f.path, 100) + " in EC2's metadata: status 404",
			Err:  errMissing,
		}
	}

	problem := m.refusal(f)
	switch {
	case problem != nil:
	case !retryable(f, err):
		problem = malformedAnswer(clean(f.path, 100))
	default:
		problem = serviceFailure(f)
	}

	problem.Err = err
	return problem
}

// refusal explains a refused request, by its status; nil if the service did not refuse it.
func (m *imdsClient) refusal(f outcome) *trouble.Error {
	const cannotAsk = "cannot ask EC2's metadata service: "
	modifyOptions := "aws ec2 modify-instance-metadata-options --instance-id " + m.name()

	noTokenAnswer := f.method == http.MethodPut && f.connected && f.status == 0
	if noTokenAnswer {
		return &trouble.Error{
			What: cannotAsk + "it does not answer the request for a token, though the connection is open",
			Because: []string{
				"the answer may go as many hops as the instance's hop limit says, mostly 1: none is left on the way into a container's network",
			},
			Try: []string{
				"run in the host's network: hostNetwork: true",
				modifyOptions + " --http-put-response-hop-limit 2",
			},
		}
	}

	switch f.status {
	case http.StatusForbidden:
		return &trouble.Error{
			What: cannotAsk + "it is turned off for this instance (status 403)",
			Because: []string{
				"the same is answered to requests that come through a proxy; gpuadm sends none through one",
			},
			Try: []string{modifyOptions + " --http-endpoint enabled"},
		}
	case http.StatusUnauthorized:
		return &trouble.Error{
			What:    cannotAsk + "it does not take the token that it gave (status 401)",
			Because: []string{"something on the way changes requests, or answers in the service's place"},
			Try:     []string{showTakers},
		}
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadRequest:
		const unknownVersion = cannotAsk + "the server that answers does not know version 2 of it (status %d)"
		return &trouble.Error{
			What: fmt.Sprintf(unknownVersion, f.status),
			Because: []string{
				"gpuadm uses IMDSv2 only: its token protects against programs that are made to fetch a URL",
			},
			Try: []string{
				"sudo iptables-save | grep " + serviceAt + "    shows who answers in its place",
				"where the machine is not in EC2: leave [join] out, and have another tool join it",
			},
		}
	}

	return nil
}

// identityPath is the path of the instance identity document.
const identityPath = "/latest/dynamic/instance-identity/document"

// name returns the instance's id for commands to type.
func (m *imdsClient) name() string {
	return cmp.Or(m.id, "ID")
}
