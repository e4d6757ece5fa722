// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"strings"
)

// Error is one thing that is wrong in a file. What looks like a secret is never in it.
type Error struct {
	File    string
	Line    int    // from 1
	Column  int    // from 1, in characters as an editor counts them; of the key or value at fault
	Text    string // the source line; cut where it is very long, and from the first secret on
	Message string // what is wrong
	Fix     string // how to fix it

	order int // of the file
}

// Error is the place and what is wrong, without the fix: `node.toml:7:3: unknown key "x" in [driver]`.
func (e Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Errors are all the things that are wrong, in the order of the files and of the places in them. It is never empty
// where Parse returns it.
type Errors []Error

// Error is one line for each.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

func compareErrors(a, b Error) int {
	return cmp.Or(
		cmp.Compare(a.order, b.order),
		cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Column, b.Column),
		strings.Compare(a.Message, b.Message),
	)
}

// A finding is what is wrong with a value, before it has a place.
type finding struct {
	message, fix string
}

func wrong(fix, format string, args ...any) *finding {
	return &finding{message: fmt.Sprintf(format, args...), fix: fix}
}
