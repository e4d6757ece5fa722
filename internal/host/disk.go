// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
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
	Lstat(name string) (Info, error)
	// Readlink returns what the link says; EINVAL if name is no link.
	Readlink(name string) (string, error)
	// Names lists the folder, in no order.
	Names() ([]string, error)
	// Device says which character device name leads to, links followed as the kernel does; the zero Device if it is none.
	Device(name string) (Device, error)

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
	Stat() (Info, error)
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

// Device is a character device that a process has open.
type Device struct {
	Major, Minor uint32
	// Name is the path by which the process opened it, in the process's own mount namespace: the process may have chosen it.
	Name string
}

// OpenDevices is View's.
func (f *Files) OpenDevices(pid int) ([]Device, error) {
	name := fmt.Sprintf("/proc/%d/fd", pid)
	found, err := f.openDevices(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, nil // the process has ended
	} else if err != nil {
		return nil, fail("list", name, err)
	}
	return found, nil
}

func (f *Files) openDevices(name string) ([]Device, error) {
	at, err := f.walk(name, true)
	if err != nil {
		return nil, err
	}
	defer at.dir.Close()
	dir, err := at.dir.Folder(at.name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fds, err := dir.Names()
	if err != nil {
		return nil, err
	}
	var found []Device
	seen := map[Device]bool{}
	for _, fd := range fds {
		d, err := dir.Device(fd)
		// What cannot be described was closed, or lies on a file system that does not answer us, like a dead NFS or another
		// user's FUSE. The kernel opens no device there.
		if err != nil || d == (Device{}) || seen[d] {
			continue
		}
		seen[d] = true
		d.Name, _ = dir.Readlink(fd)
		found = append(found, d)
	}
	slices.SortFunc(found, func(a, b Device) int { return 2*cmp.Compare(a.Major, b.Major) + cmp.Compare(a.Minor, b.Minor) })
	return found, nil
}

// Device is Folder's. It asks no file system over a network: stat(2) of a file on a dead one waits for ever. Sources for the links
// in /proc/PID/fd, which lead to the open file itself whatever their text says: proc_pid_fd(5), and proc_pid_get_link in
// fs/proc/base.c; for the flags: statx(2), and nfs_getattr in fs/nfs/inode.c.
func (d realFolder) Device(name string) (Device, error) {
	var x unix.Statx_t
	err := retryEINTR(func() error {
		return unix.Statx(int(d), name, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &x)
	})
	if err == unix.ENOSYS || err == unix.EPERM { // a seccomp profile that is older than statx(2)
		var st unix.Stat_t
		if err := retryEINTR(func() error { return unix.Fstatat(int(d), name, &st, 0) }); err != nil {
			return Device{}, err
		}
		x.Mode, x.Rdev_major, x.Rdev_minor = uint16(st.Mode), unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))
	} else if err != nil {
		return Device{}, err
	}
	if uint32(x.Mode)&unix.S_IFMT != unix.S_IFCHR {
		return Device{}, nil
	}
	return Device{Major: x.Rdev_major, Minor: x.Rdev_minor}, nil
}
