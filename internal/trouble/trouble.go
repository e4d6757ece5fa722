// SPDX-License-Identifier: Apache-2.0

// Package trouble has the error for what an operator can act on, which says what, because, undone
// and try, and the command lines in such texts. It imports nothing of gpuadm, so that every package
// can return one.
package trouble

import (
	"fmt"
	"slices"
	"strings"
)

// Error is an error that an operator can act on.
type Error struct {
	What    string   `json:"what"`              // cannot <verb> <object>: <cause>; of a fault in a file, what is wrong
	Because []string `json:"because,omitempty"` // why, in more words
	Undone  []string `json:"-"`                 // what was rolled back
	Try     []string `json:"try,omitempty"`     // what to type or change next
	Passing bool     `json:"waiting,omitempty"` // waiting helps: the same command may succeed later without any change
	Err     error    `json:"-"`                 // the cause, for errors.Is and errors.As
	At      Position `json:"-"`                 // of a fault in a file
}

// Count is a number of things: "1 GPU", "8 GPUs".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
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

// Unquoted are the same places without a word of the files, for those that are public by their
// names.
func (f Faults) Unquoted(public func(file string) bool) Faults {
	all := make(Faults, len(f))
	for i, one := range f {
		if all[i] = one; !public(one.At.File) {
			at := one.At
			at.Text = ""
			all[i] = &Error{What: "this line is wrong; gpuadm shows nothing of it to a user who may be unable to read the file", At: at}
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
	passes, _ := says(err)
	return passes
}

func says(err error) (passes, known bool) {
	switch e := err.(type) {
	case nil:
		return false, false
	case *Error:
		if e.Passing {
			return true, true
		}
		return says(e.Err)
	case interface{ Waits() bool }:
		return e.Waits(), true
	case interface{ Unwrap() error }:
		return says(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if passes, known := says(inner); known {
				return passes, true
			}
		}
	}
	return false, false
}

// mark is on both sides of a command in a text. It is INVISIBLE SEPARATOR, which no person writes,
// and which shows nothing where a text is read as it is.
const mark = "\u2063"

// Command is a command line of gpuadm in a text for operators: "apply mig". Only where the text is
// printed is it known how this operator types it: with sudo or --root, with -f, over ssh. There
// Commands replaces it.
func Command(words string) string { return mark + Plain(words) + mark }

// Commands replaces each Command of a text by what typed makes of its words.
func Commands(text string, typed func(words string) string) string {
	before, rest, found := strings.Cut(text, mark)
	if !found {
		return text
	}
	words, after, closed := strings.Cut(rest, mark)
	if !closed {
		return text
	}
	return before + typed(strings.TrimPrefix(words, Plain(""))) + Commands(after, typed)
}

// Plain is a Command's line where nothing is known of who types it.
func Plain(words string) string { return "gpuadm " + words }

// Few keeps the first lines of a list, each once, and counts the others: a user may have started
// thousands of processes.
func Few(all []string, most int) []string {
	seen := make(map[string]bool, len(all))
	all = slices.DeleteFunc(slices.Clone(all), func(line string) bool {
		repeated := seen[line]
		seen[line] = true
		return repeated
	})
	if more := len(all) - most; more > 0 {
		return append(all[:most:most], fmt.Sprintf("and %d more", more))
	}
	return all
}

// Or is "a, b or c".
func Or(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// OneLine makes a text of others fit into a message.
func OneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
