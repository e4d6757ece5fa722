// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"io/fs"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Disk is the few operations all file work is made of: just what the kernel offers, each one call, none following a link.
// The real disk and the simulated one implement it, so that path resolution and durable writing exist once
// and a simulated power cut tests the code that runs on real machines.
//
// Errors are syscall.Errno, plain or wrapped, on every Disk.
type Disk interface {
	// Root opens the folder that is "/" for the machine.
	Root() (Folder, error)
}

// wholeDisk is a Disk below which the kernel itself follows links as walk does, since it is the root of all that this process sees.
type wholeDisk interface {
	// Whole is the root folder, which takes a path like ./etc/hosts for a name, and stays open when it is closed.
	Whole() Folder
	// Real is the path that such a path leads to, free of links. With an error nothing is known: the path has to be walked.
	Real(path string) (string, error)
}

// Folder is an open folder. Names are single parts, never paths but for Whole's; "." is the folder itself.
// An open folder stays the same one when its name is moved or replaced by a link, so nothing can be swapped below us.
type Folder interface {
	// Folder opens a folder in this one; ENOTDIR if name is anything else, a link too.
	Folder(name string) (Folder, error)
	// Lstat describes name, without its extended attributes.
	Lstat(name string) (host.Info, error)
	// Readlink returns what the link says; EINVAL if name is no link.
	Readlink(name string) (string, error)
	// Names lists the folder, in no order.
	Names() ([]string, error)
	// Device says which character device name leads to, links followed as the kernel does; the zero Device if it is none.
	Device(name string) (host.Device, error)

	// Open opens a file or folder for reading, without waiting for a writer (O_NONBLOCK); ELOOP if name is a link.
	Open(name string) (File, error)
	// OpenAppend opens a file for reading, and for writing at its end.
	OpenAppend(name string) (File, error)
	// Create makes a file with mode 0600 that was not there.
	Create(name string) (File, error)
	// Mkdir makes a folder with mode 0700.
	Mkdir(name string) error
	// Symlink makes name a link that says target.
	Symlink(target, name string) error
	// Rename renames within the folder, as renameat2(2) with its flags: 0 replaces what is at to. EINVAL and other errors where
	// a flag is not known.
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
	// Xattrs lists the extended attributes that can be read; nil if there are none or the file system has none.
	Xattrs() (map[string]string, error)
	SetXattr(name, value string) error
	RemoveXattr(name string) error
	// Sync makes content and attributes durable. The name is durable only by the folder's Sync.
	Sync() error
	Close() error
}
