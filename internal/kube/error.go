// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Why tells kinds of failure apart by what helps against them.
type Why int

// The kinds.
const (
	Broken       Why = iota // the kubeconfig or what it names cannot be used
	Unreachable             // no answer at the server's address
	Untrusted               // who answers shows a certificate that is not trusted
	Unauthorized            // the server does not know our credentials (401), or there are none
	Forbidden               // the server knows us and says no (403)
	Missing                 // there is no such object (404), or no kubeconfig yet
	Conflict                // another client changed the object meanwhile (409): look again
	Busy                    // the server answers, but not now (429, 5xx), after all tries
	Refused                 // the server takes the request for wrong (400, 422, ...), or answers what cannot be understood
	Expired                 // our client certificate has run out, or does not hold or exist yet
)

// Error lets errors.Is(err, kube.Missing) find a kind.
func (w Why) Error() string {
	words := []string{
		"broken", "unreachable", "untrusted", "unauthorized", "forbidden", "missing", "conflict", "busy", "refused", "expired",
	}
	if w < 0 || int(w) >= len(words) {
		return "unknown"
	}
	return words[w]
}

// Error is what every method of this package fails with.
type Error struct {
	Verb   string // get, patch, list, ...
	What   string // the object: "node worker-1"
	Why    Why
	Status int // HTTP status, 0 if there was no answer
	Cause  error

	Because []string // more about why, in sentences
	Try     []string // what a person can type or change

	// causes are what an admission policy adds to its denial; RBAC and NodeRestriction add none. Sources: kubernetes, apiserver,
	// pkg/admission/plugin/policy/validating/dispatcher.go (Dispatch), pkg/endpoints/handlers/responsewriters/errors.go (Forbidden).
	causes []string

	waits bool          // more than Why says
	retry bool          // another try may go well
	after time.Duration // what the server asks to wait before it
	tries int
}

func (e *Error) Error() string { return fmt.Sprintf("cannot %s %s: %v", e.Verb, e.What, e.Cause) }

func (e *Error) Unwrap() error { return e.Cause }

// Is finds the kind.
func (e *Error) Is(target error) bool {
	why, ok := target.(Why)
	return ok && why == e.Why
}

// Denied says whether an admission policy has denied the request, and has put this code into its message.
func (e *Error) Denied(code string) bool {
	return slices.ContainsFunc(e.causes, func(message string) bool { return strings.Contains(message, code) })
}

// Waits says whether waiting helps: the same request may go well later without a person doing anything.
func (e *Error) Waits() bool {
	switch e.Why {
	case Unreachable, Busy, Conflict, Missing:
		return true
	}
	return e.waits
}

// worded is a cause in gpuadm's words, with the original error.
type worded struct {
	text string
	err  error
}

func (s worded) Error() string { return s.text }
func (s worded) Unwrap() error { return s.err }

// fail completes an error: what was to be done, and no secrets in any text.
func (c *Client) fail(r call, e *Error) error {
	e.Verb, e.What = r.verb, r.what
	text := e.Cause.Error()
	if e.tries > 1 {
		text += fmt.Sprintf(" (after %d tries)", e.tries)
	}
	e.Cause = worded{c.login.hide(clean(text, 1000)), e.Cause}
	for i := range e.Because {
		e.Because[i] = c.login.hide(e.Because[i])
	}
	for i := range e.Try {
		e.Try[i] = c.login.hide(e.Try[i])
	}
	return e
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
