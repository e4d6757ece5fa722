// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Why is a kind of failure; kinds differ by their remedy. errors.Is(err, kube.Missing) finds it in
// this package's errors, which all are *trouble.Error.
type Why string

// The kinds.
const (
	Broken       Why = "broken"       // the kubeconfig, or a file that it names, cannot be used
	Unreachable  Why = "unreachable"  // no answer at the server's address
	Untrusted    Why = "untrusted"    // the server at that address has an untrusted certificate
	Unauthorized Why = "unauthorized" // the server does not accept the credentials (401), or there are none
	Forbidden    Why = "forbidden"    // the server knows the user, who lacks the right (403)
	Missing      Why = "missing"      // there is no such object (404), or no kubeconfig yet
	Conflict     Why = "conflict"     // another client changed the object meanwhile (409): look again
	Busy         Why = "busy"         // the server answers, but not now (429, 5xx), after all tries
	Refused      Why = "refused"      // the request is invalid (400, 422, ...), or its answer malformed
	Slow         Why = "slow"         // the server has begun its answer, and not ended it in time
	Expired      Why = "expired"      // the client certificate is not valid any more or not yet, or missing
)

func (w Why) Error() string { return string(w) }

// fault is the failure of a try, without the verb and the object of the request.
type fault struct {
	why     Why
	status  int // HTTP status, 0 if there was no answer
	cause   error
	because []string
	try     []string
	denial  denial

	waits bool          // the caller may wait, whatever why is
	retry bool          // a retry may succeed
	after time.Duration // the wait that the server asks for before a retry
}

// to completes a fault with the request's verb and object.
func (f *fault) to(verb, what string) *trouble.Error {
	causes := []error{f.why, f.cause}
	if f.denial != nil {
		causes = append(causes, f.denial)
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot %s %s: %v", verb, what, f.cause),
		Because: f.because,
		Try:     f.try,
		Passing: f.waits || slices.Contains([]Why{Unreachable, Busy, Conflict, Missing, Slow}, f.why),
		Err:     errors.Join(causes...),
	}
}

// denial has the causes that an admission policy adds to its denial; RBAC and NodeRestriction add
// none. Sources: kubernetes, apiserver, pkg/admission/plugin/policy/validating/dispatcher.go
// (Dispatch), pkg/endpoints/handlers/responsewriters/errors.go (Forbidden).
type denial []string

func (d denial) Error() string { return strings.Join(d, "; ") }

// Denied says whether an admission policy has denied the request, and has put this code into its
// message.
func Denied(err error, code string) bool {
	d := denial{}
	hasCode := func(message string) bool { return strings.Contains(message, code) }
	return errors.As(err, &d) && slices.ContainsFunc(d, hasCode)
}

// worded is a cause in gpuadm's words, with the original error.
type worded struct {
	text string
	err  error
}

func (s worded) Error() string { return s.text }
func (s worded) Unwrap() error { return s.err }

// fail returns the error of a call, without secrets.
func (c *Client) fail(r call, f *fault, tries int) error {
	text := f.cause.Error()
	if tries > 1 {
		text += fmt.Sprintf(" (after %d tries)", tries)
	}
	f.cause = worded{c.login.hide(clean(text, 1000)), f.cause}
	for _, texts := range [][]string{f.because, f.try} {
		for i := range texts {
			texts[i] = c.login.hide(texts[i])
		}
	}

	return f.to(r.verb, r.what)
}

// clean turns a foreign text into one line of printable characters, and cuts it.
func clean(s string, limit int) string {
	printable := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(printable), " ")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
