// SPDX-FileCopyrightText: The gpuadm authors
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

// Why tells kinds of failure apart by what helps against them: errors.Is(err, kube.Missing) finds one in this package's errors, which all
// are *trouble.Error.
type Why string

// The kinds.
const (
	Broken       Why = "broken"       // the kubeconfig or what it names cannot be used
	Unreachable  Why = "unreachable"  // no answer at the server's address
	Untrusted    Why = "untrusted"    // who answers shows a certificate that is not trusted
	Unauthorized Why = "unauthorized" // the server does not know our credentials (401), or there are none
	Forbidden    Why = "forbidden"    // the server knows us and says no (403)
	Missing      Why = "missing"      // there is no such object (404), or no kubeconfig yet
	Conflict     Why = "conflict"     // another client changed the object meanwhile (409): look again
	Busy         Why = "busy"         // the server answers, but not now (429, 5xx), after all tries
	Refused      Why = "refused"      // the server takes the request for wrong (400, 422, ...), or answers what cannot be understood
	Expired      Why = "expired"      // our client certificate has run out, or does not hold or exist yet
)

func (w Why) Error() string { return string(w) }

// fault is what a try failed with, before it is known what was to be done.
type fault struct {
	why     Why
	status  int // HTTP status, 0 if there was no answer
	cause   error
	because []string
	try     []string
	denial  denial

	waits bool          // more than why says
	retry bool          // another try may go well
	after time.Duration // what the server asks to wait before it
}

// to completes a fault: what was to be done.
func (f *fault) to(verb, what string) *trouble.Error {
	causes := []error{f.why, f.cause}
	if f.denial != nil {
		causes = append(causes, f.denial)
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot %s %s: %v", verb, what, f.cause), Because: f.because, Try: f.try,
		Passing: f.waits || slices.Contains([]Why{Unreachable, Busy, Conflict, Missing}, f.why),
		Err:     errors.Join(causes...),
	}
}

// denial is what an admission policy adds to its denial; RBAC and NodeRestriction add nothing. Sources: kubernetes, apiserver,
// pkg/admission/plugin/policy/validating/dispatcher.go (Dispatch), pkg/endpoints/handlers/responsewriters/errors.go (Forbidden).
type denial []string

func (d denial) Error() string { return strings.Join(d, "; ") }

// Denied says whether an admission policy has denied the request, and has put this code into its message.
func Denied(err error, code string) bool {
	d := denial{}
	return errors.As(err, &d) && slices.ContainsFunc(d, func(message string) bool { return strings.Contains(message, code) })
}

// worded is a cause in gpuadm's words, with the original error.
type worded struct {
	text string
	err  error
}

func (s worded) Error() string { return s.text }
func (s worded) Unwrap() error { return s.err }

// fail is the error of a call, with no secrets in any text.
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

// clean makes one line of printable characters out of what others say, and cuts it.
func clean(s string, limit int) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)), " ")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
