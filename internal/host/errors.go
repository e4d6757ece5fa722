// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
)

// FileError reports what could not be done to a file and why; errors.Is finds fs.ErrNotExist, syscall.ENOSPC and the like.
type FileError struct {
	Verb  string // read, write, remove, …
	Path  string // as it was asked for
	Leads string // where it leads, if links are on the way
	Cause error
	Note  string // the cause in better words than the kernel's
}

func (e *FileError) Error() string {
	s := "cannot " + e.Verb + " " + e.Path
	if e.Leads != "" && e.Leads != e.Path {
		s += " (which leads to " + e.Leads + ")"
	}
	if e.Note != "" {
		return s + ": " + e.Note
	}
	return fmt.Sprintf("%s: %v", s, e.Cause)
}

func (e *FileError) Unwrap() error { return e.Cause }

// Failed words an error of a path that could not even be walked.
func Failed(verb, name string, err error) error {
	return &FileError{Verb: verb, Path: name, Cause: err}
}
