// SPDX-License-Identifier: Apache-2.0

package files

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
	"golang.org/x/sys/unix"
)

// Disk has the operations that all file work is made of: each is one system call, and none follows
// a link. The real disk and the simulated one implement it, so that path resolution and durable
// writing exist once and a simulated power cut tests the code that runs on real machines.
//
// Errors are syscall.Errno, plain or wrapped, on every Disk.
type Disk interface {
	// Root opens the folder that is "/" for the machine.
	Root() (Folder, error)
}

// wholeDisk is a Disk below which the kernel itself follows links as walk does, since it is the
// root of all that this process sees.
type wholeDisk interface {
	// Whole is the root folder, which takes a path like ./etc/hosts for a name, and stays open when
	// it is closed.
	Whole() Folder
	// Real is the path that such a path leads to, free of links. With an error nothing is known:
	// the path has to be walked.
	Real(path string) (string, error)
}

// Folder is an open folder. Names are single parts, never paths but for Whole's; "." is the folder
// itself. An open folder stays the same folder when its name is moved or replaced by a link, so
// another process cannot swap what lies below it.
type Folder interface {
	// Folder opens a folder in this one; ENOTDIR if name is anything else, a link too.
	Folder(name string) (Folder, error)
	// Lstat describes name, without its extended attributes.
	Lstat(name string) (host.Info, error)
	// Readlink returns what the link says; EINVAL if name is not a link.
	Readlink(name string) (string, error)
	// Names lists the folder, in no order.
	Names() ([]string, error)
	// Device says which character device name leads to, links followed as the kernel does; the zero
	// Device if it is none.
	Device(name string) (host.Device, error)

	// Open opens a file or folder for reading, without waiting for a writer (O_NONBLOCK); ELOOP if
	// name is a link.
	Open(name string) (File, error)
	// OpenAppend opens a file for reading, and for writing at its end.
	OpenAppend(name string) (File, error)
	// Create makes a file with mode 0600 that was not there.
	Create(name string) (File, error)
	// Mkdir makes a folder with mode 0700.
	Mkdir(name string) error
	// Symlink makes name a link that says target.
	Symlink(target, name string) error
	// Rename renames within the folder, as renameat2(2) with its flags: 0 replaces what is at to.
	// EINVAL and other errors where a flag is not known.
	Rename(from, to string, flags uint) error
	// Unlink removes what is not a folder, Rmdir an empty folder.
	Unlink(name string) error
	Rmdir(name string) error
	// Sync makes the names in this folder durable: what was made, renamed and removed in it.
	Sync() error
	Close() error
}

// File is an open file, or an open folder's attributes.
type File interface {
	// Stat describes it, without its extended attributes.
	Stat() (host.Info, error)
	// Read reads on, as io.Reader.
	Read(p []byte) (int, error)
	// ReadAt reads at an offset, as io.ReaderAt.
	ReadAt(p []byte, off int64) (int, error)
	// Write writes all of p or fails.
	Write(p []byte) (int, error)
	Chown(uid, gid int) error
	// Chmod sets the permission bits with setuid, setgid and sticky.
	Chmod(mode fs.FileMode) error
	// Xattrs lists the extended attributes that can be read; nil if there are none or the file
	// system has none.
	Xattrs() (map[string]string, error)
	SetXattr(name, value string) error
	RemoveXattr(name string) error
	// Sync makes content and attributes durable. The name is durable only by the folder's Sync.
	Sync() error
	Close() error
}

// OpenRoot opens the folder that is "/" for the machine, by its absolute path, once and for all.
//
// It follows no link on the way: a user who may write to a folder there could put a link in it that
// leads to another tree. Other files in such a folder are not judged: that would refuse "sudo
// gpuadm --root image" in a home folder.
func OpenRoot(abs string) (RealDisk, error) {
	fd, err := OpenAt(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}

	at := realFolder(fd)
	name := "/"
	for _, part := range Parts(abs) {
		name = path.Join(name, part)
		next, err := at.Folder(part)
		if errors.Is(err, unix.ENOTDIR) {
			if to, notLink := at.Readlink(part); notLink == nil {
				err = fmt.Errorf("%s is a link to %s, and gpuadm follows none on the way to a root folder: name it as realpath prints it", name, to)
			}
		}

		at.Close()
		if err != nil {
			return -1, err
		}
		at = next.(realFolder)
	}

	return RealDisk(at), nil
}

// fail words an error at a place. The kernel says "operation not permitted" for several causes,
// which need different fixes.
func (at place) fail(verb, name string, err error) error {
	if at.of != nil && !errors.Is(err, fs.ErrNotExist) { // most of what is not there is no error
		if leads, err := at.of.Resolve(name); err == nil {
			at.path = leads
		}
	}

	e := &host.FileError{
		Verb:  verb,
		Path:  name,
		Leads: at.path,
		Cause: err,
	}
	switch {
	case errors.Is(err, syscall.EBUSY):
		e.Note = "it is a mount point of its own"
	case errors.Is(err, syscall.EPERM) && verb != "read":
		at.blame(e)
	}

	return e
}

// blame names the attribute that keeps even root from changing a file or its folder.
func (at place) blame(e *host.FileError) {
	changed := cmp.Or(e.Leads, e.Path)
	file, _ := at.dir.Lstat(at.name)
	folder, _ := at.dir.Lstat(".")
	switch {
	case file.Chattr != "":
		e.Attribute = host.Attribute{Of: changed, Set: file.Chattr}
		e.Note = "it is " + e.Attribute.String()
	case folder.Chattr != "":
		e.Attribute = host.Attribute{Of: path.Dir(changed), Set: folder.Chattr}
		e.Note = "its folder is " + e.Attribute.String()
	}
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
	name string // one part; "." for the root itself; from reach a path
	path string // the whole path, free of links; from reach as it was asked for
	of   *Files // from reach: an error asks it where the path led

	looked bool // info and err are Lstat's answer
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
