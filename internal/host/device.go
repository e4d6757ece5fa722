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
