// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// FileError reports what could not be done to a file and why; errors.Is finds fs.ErrNotExist, syscall.ENOSPC and the like.
type FileError struct {
	Verb  string // read, write, remove, …
	Path  string // as it was asked for
	Leads string // where it leads, if links are on the way
	Cause error
	note  string // the cause in better words than the kernel's
}

func (e *FileError) Error() string {
	s := "cannot " + e.Verb + " " + e.Path
	if e.Leads != "" && e.Leads != e.Path {
		s += " (which leads to " + e.Leads + ")"
	}
	if e.note != "" {
		return s + ": " + e.note
	}
	return fmt.Sprintf("%s: %v", s, e.Cause)
}

func (e *FileError) Unwrap() error { return e.Cause }

// fail words an error of a path that could not even be walked.
func fail(verb, name string, err error) error {
	return &FileError{Verb: verb, Path: name, Cause: err}
}

// fail words an error at a place. The kernel says "operation not permitted" for several things a person must know apart.
func (at place) fail(verb, name string, err error) error {
	if at.of != nil && !errors.Is(err, fs.ErrNotExist) { // most of what is not there is no error
		if leads, err := at.of.Resolve(name); err == nil {
			at.path = leads
		}
	}
	e := &FileError{Verb: verb, Path: name, Leads: at.path, Cause: err}
	switch {
	case errors.Is(err, syscall.EBUSY):
		e.note = "it is a mount point of its own"
	case errors.Is(err, syscall.EPERM) && verb != "read":
		e.note = at.chattr()
	}
	return e
}

// chattr names the attribute that keeps even root from changing a file or its folder: chattr(1).
func (at place) chattr() string {
	it, _ := at.dir.Lstat(at.name)
	folder, _ := at.dir.Lstat(".")
	for _, at := range []struct{ what, flag string }{{"it", it.Chattr}, {"its folder", folder.Chattr}} {
		switch at.flag {
		case "i":
			return at.what + " is immutable (chattr +i)"
		case "a":
			return at.what + " is append-only (chattr +a)"
		}
	}
	return ""
}

// Join is errors.Join, but that its text is one line.
func Join(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return joined{err}
	}
	return nil
}

type joined struct{ error }

func (j joined) Error() string { return strings.ReplaceAll(j.error.Error(), "\n", "; ") }

func (j joined) Unwrap() error { return j.error }

// notRegular says why a file is not read or replaced.
type notRegular fs.FileMode

func (m notRegular) Error() string {
	return "it is " + TypeName(fs.FileMode(m)) + ", not a regular file"
}

// Is makes a folder answer to syscall.EISDIR and all else to fs.ErrInvalid.
func (m notRegular) Is(target error) bool {
	return target == fs.ErrInvalid || target == syscall.EISDIR && fs.FileMode(m).IsDir()
}

// TypeName says in words what kind of file a mode is of: "a folder".
func TypeName(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeSymlink != 0:
		return "a link"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsRegular():
		return "a regular file"
	}
	return "something"
}
