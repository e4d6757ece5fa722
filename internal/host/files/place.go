// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
)

// fail words an error at a place. The kernel says "operation not permitted" for several things a person must know apart.
func (at place) fail(verb, name string, err error) error {
	if at.of != nil && !errors.Is(err, fs.ErrNotExist) { // most of what is not there is no error
		if leads, err := at.of.Resolve(name); err == nil {
			at.path = leads
		}
	}
	e := &host.FileError{Verb: verb, Path: name, Leads: at.path, Cause: err}
	switch {
	case errors.Is(err, syscall.EBUSY):
		e.Note = "it is a mount point of its own"
	case errors.Is(err, syscall.EPERM) && verb != "read":
		e.Note = at.chattr()
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

// notRegular says why a file is not read or replaced.
type notRegular fs.FileMode

func (m notRegular) Error() string {
	return "it is " + host.TypeName(fs.FileMode(m)) + ", not a regular file"
}

// Is makes a folder answer to syscall.EISDIR and all else to fs.ErrInvalid.
func (m notRegular) Is(target error) bool {
	return target == fs.ErrInvalid || target == syscall.EISDIR && fs.FileMode(m).IsDir()
}

// place is where a path leads: a name in an open folder.
type place struct {
	dir  Folder
	name string // one part; "." for the root itself; of reach a path
	path string // the whole path, free of links; of reach as it was asked for
	of   *Files // of reach, to find for an error where the path led

	looked bool // Lstat has been asked already, and said this
	info   host.Info
	err    error
}

// lstat is the folder's Lstat of the name.
func (p place) lstat() (host.Info, error) {
	if p.looked {
		return p.info, p.err
	}
	return p.dir.Lstat(p.name)
}
