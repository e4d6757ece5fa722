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

// Replace is Host's. It looks before the exchange, which shows most changes by other processes, and
// again after it: if the file has changed between the two looks, Replace puts the replaced file
// back. It misses only a process that has opened the file before the exchange and writes to it
// after the second look. If the file system has no exchange, or a seccomp filter forbids it, there
// is only the first look.
func (f *Files) Replace(name string, with *host.Entry, expected func(found *host.Entry) bool) error {
	verb := "write"
	during := "writing"
	switch {
	case with == nil:
		verb = "remove"
		during = "removing"
	case with.Link != "":
		verb = "make link"
	}

	return f.at(verb, name, false, func(dir Folder, name string) error {
		r := replacement{
			dir:      dir,
			name:     name,
			with:     with,
			expected: expected,
			during:   during,
		}
		if with == nil {
			nothing := func(string) error { return nil }
			return settle(dir, nothing, r.takeAway)
		}
		return settle(dir, r.build, r.exchange)
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

// build makes the new file or link.
func (r replacement) build(temp string) error {
	if r.with.Link != "" {
		return r.dir.Symlink(r.with.Link, temp)
	}
	return writeNew(r.dir, temp, bytes.NewReader(r.with.Data), r.with.Attr)
}

// exchange gives what build has made its name.
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
		// Another process has changed what gpuadm put there: its change stays.
		return r.dir.Rename(temp, r.name, unix.RENAME_EXCHANGE)
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
	errBack := back()
	overtaken := errors.Is(errBack, fs.ErrNotExist) || errors.Is(errBack, fs.ErrExist)
	if errBack != nil && !overtaken {
		return strayed{err, temp, errBack}
	}
	_ = r.dir.Sync() // without it a power cut could leave the change under the temporary name
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
	if found.Link != r.with.Link || !bytes.Equal(found.Data, r.with.Data) {
		return false
	}

	is := found.Attr
	written := r.with.Attr
	sameAttr := is.Mode == written.Mode && is.UID == written.UID && is.GID == written.GID
	return found.Link != "" || sameAttr
}

// changed words what the kernel says where another process was quicker: between two steps of a
// look, or before the rename.
func (r replacement) changed(err error) error {
	var code syscall.Errno
	errors.As(err, &code)
	switch code {
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

	data, err := readRegular(place{
		dir:    dir,
		name:   name,
		looked: true,
		info:   i,
	})
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
	_, err = dir.Lstat(to)
	if err == nil {
		return syscall.EEXIST
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return dir.Rename(from, to, 0)
}

// notOffered reports whether the flags of renameat2(2) may be the cause of an error: not all
// kernels and file systems know them, and seccomp filters answer EPERM. If the cause is another
// one, the plain rename gives the same error again.
func notOffered(err error) bool {
	var code syscall.Errno
	errors.As(err, &code)
	switch code {
	case syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.EPERM:
		return true
	}

	return false
}

// Rename is Host's.
func (f *Files) Rename(from, to string) error {
	clean := path.Clean(from) == from && path.Clean(to) == to
	if !clean || path.Dir(from) != path.Dir(to) {
		return host.Failed("rename", from, fmt.Errorf("%s is not in the same folder", to))
	}
	return f.at("rename", from, false, func(dir Folder, name string) error {
		if err := renameNew(dir, name, path.Base(to)); err != nil {
			return err
		}
		return dir.Sync()
	})
}
