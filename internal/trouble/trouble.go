// SPDX-License-Identifier: Apache-2.0

// Package trouble has the error that an operator can act on: it says what is wrong and why, what
// was undone, and what to try. It also has the command lines in such texts. It imports no package
// of gpuadm, so that every package can return such an error.
package trouble

import (
	"errors"
	"fmt"
	"strings"
)

// Error is an error that an operator can act on.
type Error struct {
	What    string   `json:"what"`              // cannot <verb> <object>: <cause>; or what is wrong in a file
	Because []string `json:"because,omitempty"` // why, in more words
	Undone  []string `json:"-"`                 // what was rolled back, or NothingTouched
	Try     []string `json:"try,omitempty"`     // what to type or change next
	Passing bool     `json:"waiting,omitempty"` // waiting helps: the same command may succeed later
	Err     error    `json:"-"`                 // the cause, for errors.Is and errors.As
	Keys    []string `json:"-"`                 // keys of node.toml with values at fault: "driver.repo.key"
	At      Position `json:"-"`                 // of a fault in a file
}

// NothingTouched is what a refusal has undone that comes before the first change.
const NothingTouched = "nothing was touched"

// WithKeys names the keys of the spec that are at fault, for an Error that names none.
func WithKeys(err error, keys ...string) error {
	var t *Error
	if !errors.As(err, &t) || len(t.Keys) > 0 {
		return err
	}
	if error(t) != err { // another error is around it, and keeps its words
		return &Error{
			What:    err.Error(),
			Because: t.Because,
			Try:     t.Try,
			Err:     err,
			Keys:    keys,
		}
	}

	named := *t
	named.Keys = keys
	return &named
}

// Position is a place in a file.
type Position struct {
	File   string
	Line   int    // from 1; 0 where the error is about no file
	Column int    // from 1, in characters as an editor counts them
	Text   string // the line, as it may be shown: cut where it is very long, and from the first secret on
}

// Error is what, and for a fault in a file its place: `node.toml:7:3: unknown key "x" in [driver]`.
func (e *Error) Error() string {
	if e.At.Line > 0 {
		return fmt.Sprintf("%s:%d:%d: %s", e.At.File, e.At.Line, e.At.Column, e.What)
	}
	if e.What == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.What
}

func (e *Error) Unwrap() error { return e.Err }

// Faults are all that is wrong in files, in the order of the files and of the places in them. It is
// never empty where a reader of files returns it.
type Faults []*Error

// Error is one line for each.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unquoted are the same faults, without a word of the files that are not public.
func (f Faults) Unquoted(public func(file string) bool) Faults {
	all := make(Faults, len(f))
	for i, one := range f {
		all[i] = one
		if public(one.At.File) {
			continue
		}

		at := one.At
		at.Text = ""
		all[i] = &Error{
			What: "this line is wrong; gpuadm shows nothing of it to a user who may be unable to read the file",
			At:   at,
		}
	}

	return all
}

// Code names a fault, or what is waited for, to code: errors.Is finds it in an Error and in a Wait,
// also in those of a plan. Of a fault that a check finds it is the check's name.
type Code string

func (c Code) Error() string { return string(c) }

// Wait reports a missing thing that gpuadm does not make and that will come: a device plugin that
// has not registered yet. Nothing is rolled back for it, and the same command continues from there.
type Wait struct {
	For string   // "the device plugin offers 7 of 8 GPUs"
	Try []string // what to do if it does not come
	Err error    // its Code, for errors.Is
}

func (w Wait) Error() string { return "not yet: " + w.For }

func (w Wait) Unwrap() error { return w.Err }

// Waits says that waiting helps.
func (Wait) Waits() bool { return true }

// Passes says whether an error passes by waiting: an Error or a Wait that says so, or another error
// that says so of itself, like an API server that does not answer. The first that says either way
// decides; an Error that is not Passing leaves it to its cause.
func Passes(err error) bool {
	passes, _ := passing(err)
	return passes
}

// passing says whether an error passes; known: the error says either.
func passing(err error) (passes, known bool) {
	switch e := err.(type) {
	case nil:
		return false, false
	case *Error:
		if e.Passing {
			return true, true
		}
		return passing(e.Err)
	case interface{ Waits() bool }:
		return e.Waits(), true
	case interface{ Unwrap() error }:
		return passing(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			passes, known := passing(inner)
			if known {
				return passes, true
			}
		}
	}
	return false, false
}
