// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
	"golang.org/x/sys/unix"
)

// strayed reports that gpuadm could not put another process's change back under its name.
type strayed struct {
	error
	temp string
	back error
}

func (s strayed) Error() string {
	return fmt.Sprintf("%v; what was there is now in %s beside it, since it cannot be moved back: %v", s.error, s.temp, s.back)
}

func (s strayed) Unwrap() error { return s.error }

// Replace is Host's. Most changes by others are seen by the look before the step. One that comes
// between the two is seen by the look after the exchange: what was replaced is at hand, and goes
// back. Only a process that opened the file before the exchange and writes to it after the second
// look is not noticed. Where the file system knows no exchange, or a seccomp filter forbids it, the
// first look has to do.
func (f *Files) Replace(name string, with *host.Entry, expected func(found *host.Entry) bool) error {
	verb, r := "write", replacement{with: with, expected: expected, during: "writing"}
	switch {
	case with == nil:
		verb, r.during = "remove", "removing"
	case with.Link != "":
		verb = "make link"
	}

	return f.at(verb, name, false, func(dir Folder, name string) error {
		r.dir, r.name = dir, name
		switch {
		case with == nil:
			return settle(dir, func(string) error { return nil }, r.takeAway)
		case with.Link != "":
			return settle(dir, func(temp string) error { return dir.Symlink(with.Link, temp) }, r.exchange)
		}
		return settle(dir, func(temp string) error { return lay(dir, temp, bytes.NewReader(with.Data), with.Attr) }, r.exchange)
	})
}

// replacement is a Replace at work in a folder.
type replacement struct {
	dir      Folder
	name     string
	with     *host.Entry
	expected func(found *host.Entry) bool
	during   string
}

// exchange gives what is whole under temp its name.
func (r replacement) exchange(temp string) error {
	found, err := r.look(r.name)
	if err != nil {
		return err
	}
	if found == nil {
		return r.changed(renameNew(r.dir, temp, r.name))
	}

	err = r.dir.Rename(temp, r.name, unix.RENAME_EXCHANGE)
	switch {
	case notOffered(err):
		return r.changed(r.dir.Rename(temp, r.name, 0))
	case err != nil:
		return r.changed(err)
	}

	return r.drop(temp, func() error {
		err := r.dir.Rename(temp, r.name, unix.RENAME_EXCHANGE)
		if err != nil || r.isWritten(temp) {
			return err
		}
		return r.dir.Rename(temp, r.name, unix.RENAME_EXCHANGE) // another process has changed what gpuadm put there: its change stays
	})
}

// takeAway removes the name.
func (r replacement) takeAway(temp string) error {
	found, err := r.look(r.name)
	if err != nil {
		return err
	}
	if found == nil {
		return syscall.ENOENT
	}
	if err := renameNew(r.dir, r.name, temp); err != nil {
		return r.changed(err)
	}
	return r.drop(temp, func() error { return renameNew(r.dir, temp, r.name) })
}

// drop removes what was replaced, if it is what was expected; else it goes back.
func (r replacement) drop(temp string, back func() error) error {
	_, err := r.look(temp)
	if err == nil {
		err = r.dir.Unlink(temp)
	}
	if err == nil {
		return nil
	}

	// Another process may have removed or made a file of that name since: its change stays.
	if no := back(); no != nil && !errors.Is(no, fs.ErrNotExist) && !errors.Is(no, fs.ErrExist) {
		return strayed{err, temp, no}
	}
	_ = r.dir.Sync() // else a power cut could leave the change under the temporary name
	return err
}

// look returns what lies at a name, if it is what was expected at the name that is replaced.
func (r replacement) look(name string) (*host.Entry, error) {
	found, err := entry(r.dir, name)
	if err == nil && !r.expected(found) {
		err = host.Changed{During: r.during}
	}
	return found, r.changed(err)
}

// isWritten says whether a name still leads to what was written.
func (r replacement) isWritten(name string) bool {
	found, err := entry(r.dir, name)
	if err != nil || found == nil {
		return true
	}
	a, b := found.Attr, r.with.Attr
	return found.Link == r.with.Link && bytes.Equal(found.Data, r.with.Data) &&
		(found.Link != "" || a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID)
}

// changed words what the kernel says where another process was quicker: between two steps of a
// look, or before the rename.
func (r replacement) changed(err error) error {
	var no syscall.Errno
	errors.As(err, &no)
	switch no {
	case syscall.ENOENT, syscall.EEXIST, syscall.EISDIR, syscall.ELOOP, syscall.EINVAL:
		return host.Changed{During: r.during}
	}
	return err
}

// entry returns what lies at a name.
func entry(dir Folder, name string) (*host.Entry, error) {
	i, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case i.Mode&fs.ModeSymlink != 0:
		to, err := dir.Readlink(name)
		return &host.Entry{Link: to}, err
	}

	data, err := readRegular(place{dir: dir, name: name, looked: true, info: i})
	if err != nil {
		return nil, err
	}
	i, err = describe(dir, name)

	return &host.Entry{Data: data, Attr: i.Attr()}, err
}

// renameNew renames in a folder, and replaces nothing.
func renameNew(dir Folder, from, to string) error {
	err := dir.Rename(from, to, unix.RENAME_NOREPLACE)
	if !notOffered(err) {
		return err
	}
	if _, err := dir.Lstat(to); err == nil {
		return syscall.EEXIST
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return dir.Rename(from, to, 0)
}

// notOffered says whether an error may be of renameat2(2)'s flags, which not all kernels and file
// systems know; EPERM is what seccomp filters say. If it is of something else the plain rename says
// so once more.
func notOffered(err error) bool {
	var no syscall.Errno
	errors.As(err, &no)
	return no == syscall.EINVAL || no == syscall.ENOSYS || no == syscall.EOPNOTSUPP || no == syscall.EPERM
}

// Rename is Host's.
func (f *Files) Rename(from, to string) error {
	if path.Clean(from) != from || path.Clean(to) != to || path.Dir(from) != path.Dir(to) {
		return host.Failed("rename", from, fmt.Errorf("%s is not in the same folder", to))
	}
	return f.at("rename", from, false, func(dir Folder, name string) error {
		if err := renameNew(dir, name, path.Base(to)); err != nil {
			return err
		}
		return dir.Sync()
	})
}
