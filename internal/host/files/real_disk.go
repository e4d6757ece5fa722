// SPDX-License-Identifier: Apache-2.0

package files

import (
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"golang.org/x/sys/unix"
)

// RealDisk is the kernel's file system below a folder, by the descriptor of that folder. Its path
// is not used again once it is open: a user who can write in the folder's parent could put another
// folder in its place, or a link. It is open as long as the process lives, which opens one or two.
//
// Every path is walked part by part with O_NOFOLLOW from an open folder (openat(2)), so whatever is
// swapped for a link meanwhile, the kernel itself never follows one and nothing leads out of the
// root; on the running machine, out of whose root nothing leads, it follows them for what is only
// read (ownRoot).
type RealDisk int

// Root needs no permission that the first opening did not: openat(2) of "." would.
func (d RealDisk) Root() (Folder, error) {
	fd, err := retryEINTRValue(func() (int, error) {
		return unix.FcntlInt(uintptr(d), unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	return realFolder(fd), nil
}

// ownRoot is the disk of the running machine.
type ownRoot struct{ RealDisk }

// NewLive is the files of the running machine, with its root folder open.
func NewLive(root RealDisk) *Files { return New(ownRoot{root}) }

// Whole is wholeDisk's.
func (d ownRoot) Whole() Folder { return wholeFolder{realFolder(d.RealDisk)} }

type wholeFolder struct{ realFolder }

func (wholeFolder) Close() error { return nil }

// Real is wholeDisk's. The kernel appends to the path of a file that was removed meanwhile:
// proc_pid_fd(5).
func (d ownRoot) Real(path string) (string, error) {
	fd, err := OpenAt(unix.AT_FDCWD, path, unix.O_PATH, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	name, err := realFolder(unix.AT_FDCWD).Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err == nil && (!strings.HasPrefix(name, "/") || strings.HasSuffix(name, " (deleted)")) {
		err = unix.ENOENT
	}
	return name, err
}

// realFolder is a descriptor opened with O_PATH: it needs only search permission.
type realFolder int

func (d realFolder) Folder(name string) (Folder, error) {
	// O_DIRECTORY makes the kernel mount what systemd automounts there; without it O_PATH would not
	// (open(2)).
	fd, err := OpenAt(int(d), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == unix.ELOOP { // older kernels, for a link
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, err
	}
	return realFolder(fd), nil
}

func (d realFolder) Lstat(name string) (host.Info, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	var x unix.Statx_t
	err := RetryEINTR(func() error {
		return unix.Statx(int(d), name, flags, unix.STATX_BASIC_STATS, &x)
	})
	if err != nil {
		return host.Info{}, err
	}

	changed := unix.Timespec{Sec: x.Ctime.Sec, Nsec: int64(x.Ctime.Nsec)}
	written := unix.Timespec{Sec: x.Mtime.Sec, Nsec: int64(x.Mtime.Nsec)}
	i := info(&unix.Stat_t{
		Ino:  x.Ino,
		Mode: uint32(x.Mode),
		Uid:  x.Uid,
		Gid:  x.Gid,
		Size: int64(x.Size),
		Ctim: changed,
		Mtim: written,
	})
	if i.Mode&fs.ModeCharDevice != 0 {
		i.Device = host.Device{Major: x.Rdev_major, Minor: x.Rdev_minor}
	}
	switch {
	case x.Attributes&unix.STATX_ATTR_IMMUTABLE != 0:
		i.Chattr = "i"
	case x.Attributes&unix.STATX_ATTR_APPEND != 0:
		i.Chattr = "a"
	}

	return i, nil
}

func (d realFolder) Readlink(name string) (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := retryEINTRValue(func() (int, error) {
			return unix.Readlinkat(int(d), name, buf)
		})
		if err != nil {
			return "", err
		}
		if n < size { // readlinkat(2) truncates without a word
			return string(buf[:n]), nil
		}
	}
}

func (d realFolder) Names() ([]string, error) {
	fd, err := OpenAt(int(d), ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var names []string
	buf := make([]byte, 4<<10)
	for {
		n, err := retryEINTRValue(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names) // leaves out . and ..
	}
}

func (d realFolder) Open(name string) (File, error) {
	return d.file(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

func (d realFolder) OpenAppend(name string) (File, error) {
	return d.file(name, unix.O_RDWR|unix.O_APPEND|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

func (d realFolder) Create(name string) (File, error) {
	return d.file(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
}

func (d realFolder) file(name string, flags int, mode uint32) (File, error) {
	fd, err := OpenAt(int(d), name, flags|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, err
	}
	return realFile(fd), nil
}

func (d realFolder) Mkdir(name string) error {
	return RetryEINTR(func() error { return unix.Mkdirat(int(d), name, 0o700) })
}

func (d realFolder) Symlink(target, name string) error {
	return RetryEINTR(func() error { return unix.Symlinkat(target, int(d), name) })
}

func (d realFolder) Rename(from, to string, flags uint) error {
	return RetryEINTR(func() error { return unix.Renameat2(int(d), from, int(d), to, flags) })
}

func (d realFolder) Unlink(name string) error {
	return RetryEINTR(func() error { return unix.Unlinkat(int(d), name, 0) })
}

func (d realFolder) Rmdir(name string) error {
	return RetryEINTR(func() error { return unix.Unlinkat(int(d), name, unix.AT_REMOVEDIR) })
}

func (d realFolder) Sync() error {
	fd, err := OpenAt(int(d), ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = RetryEINTR(func() error { return unix.Fsync(fd) })
	if err == unix.EINVAL { // some network and FUSE file systems cannot sync a folder: fsync(2)
		return nil
	}
	return err
}

func (d realFolder) Close() error { return unix.Close(int(d)) }

// OpenAt is openat(2) with O_CLOEXEC.
func OpenAt(at int, name string, flags int, mode uint32) (int, error) {
	return retryEINTRValue(func() (int, error) {
		return unix.Openat(at, name, flags|unix.O_CLOEXEC, mode)
	})
}

// RetryEINTR repeats a system call that a signal interrupted: file systems over a network or in
// user space may say EINTR in spite of SA_RESTART, as the standard library knows too
// (go.dev/issue/39237).
func RetryEINTR(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func retryEINTRValue(call func() (int, error)) (n int, err error) {
	err = RetryEINTR(func() error {
		n, err = call()
		return err
	})
	return n, err
}

func info(st *unix.Stat_t) host.Info {
	return host.Info{
		Mode:  fileMode(st.Mode),
		UID:   shownOwner(int(st.Uid), caller()[0]),
		GID:   shownOwner(int(st.Gid), caller()[1]),
		Size:  st.Size,
		Inode: st.Ino,
		Ctime: time.Unix(st.Ctim.Unix()),
		Mtime: time.Unix(st.Mtim.Unix()),
	}
}

// fileTypes are the types of files, as the kernel and Go write them.
var fileTypes = map[uint32]fs.FileMode{
	unix.S_IFDIR:  fs.ModeDir,
	unix.S_IFLNK:  fs.ModeSymlink,
	unix.S_IFIFO:  fs.ModeNamedPipe,
	unix.S_IFSOCK: fs.ModeSocket,
	unix.S_IFCHR:  fs.ModeDevice | fs.ModeCharDevice,
	unix.S_IFBLK:  fs.ModeDevice,
}

// specialBits are the bits of a mode that are not permissions, as the kernel and Go write them.
var specialBits = [...]struct {
	unix uint32
	mode fs.FileMode
}{
	{unix.S_ISUID, fs.ModeSetuid},
	{unix.S_ISGID, fs.ModeSetgid},
	{unix.S_ISVTX, fs.ModeSticky},
}

func fileMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m&0o777) | fileTypes[m&unix.S_IFMT]
	for _, bit := range specialBits {
		if m&bit.unix != 0 {
			mode |= bit.mode
		}
	}

	return mode
}

// UnixMode returns a mode's permissions with setuid, setgid and sticky as the kernel writes them.
func UnixMode(mode fs.FileMode) uint32 {
	m := uint32(mode.Perm())
	for _, bit := range specialBits {
		if mode&bit.mode != 0 {
			m |= bit.unix
		}
	}

	return m
}

// caller returns the user and the group that this process acts as. They do not change, and to ask
// for each file would cost two system calls.
var caller = sync.OnceValue(func() [2]int { return [2]int{unix.Geteuid(), unix.Getegid()} })

// shownOwner returns an owner as the machine knows it. If gpuadm does not run as root, the caller's
// files count as root's, as in a user namespace (user_namespaces(7)): so the user who owns an
// image's folder can prepare the image and undo it.
func shownOwner(id, caller int) int {
	if id == caller {
		return 0
	}
	return id
}

// storedOwner is the reverse.
func storedOwner(id, caller int) int {
	if id == 0 {
		return caller
	}
	return id
}

// Device is Folder's. It asks no file system over a network: stat(2) of a file on a dead one waits
// for ever. Sources for the links in /proc/PID/fd, which lead to the open file itself whatever
// their text says: proc_pid_fd(5), and proc_pid_get_link in fs/proc/base.c; for the flags:
// statx(2), and nfs_getattr in fs/nfs/inode.c.
func (d realFolder) Device(name string) (host.Device, error) {
	var x unix.Statx_t
	err := RetryEINTR(func() error {
		return unix.Statx(int(d), name, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &x)
	})
	if err != nil {
		return host.Device{}, err
	}
	if uint32(x.Mode)&unix.S_IFMT != unix.S_IFCHR {
		return host.Device{}, nil
	}
	return host.Device{Major: x.Rdev_major, Minor: x.Rdev_minor}, nil
}
