// SPDX-License-Identifier: Apache-2.0

// Package files does all work on files, by the few calls that a disk offers: on the disk of this
// machine, of an image, and on a simulated one.
package files

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"golang.org/x/sys/unix"
)

// Files is all file work of a Host over a Disk. Looks run side by side; touches one after the
// other.
type Files struct {
	disk  Disk
	touch sync.Mutex
}

// New returns the files of a disk.
func New(disk Disk) *Files { return &Files{disk: disk} }

// Resolve is View's.
func (f *Files) Resolve(name string) (string, error) {
	if disk, ok := f.whole(name); ok {
		if real, err := disk.Real(name); err == nil {
			return real, nil
		}
	}

	at, err := f.walk(name, true)
	if err != nil {
		return "", host.Failed("find", name, err)
	}
	defer at.dir.Close()
	return at.path, nil
}

// Stat is View's.
func (f *Files) Stat(name string) (host.Info, error) {
	at, err := f.reach(name, true)
	if err != nil {
		return host.Info{}, host.Failed("stat", name, err)
	}
	defer at.dir.Close()
	i, err := at.lstat()
	if err != nil {
		return host.Info{}, at.fail("stat", name, err)
	}
	return i, nil
}

// Lstat is View's.
func (f *Files) Lstat(name string) (host.Info, error) {
	at, err := f.reach(name, false)
	if err != nil {
		return host.Info{}, host.Failed("stat", name, err)
	}
	defer at.dir.Close()
	i, err := describe(at.dir, at.name)
	if err != nil {
		return host.Info{}, at.fail("stat", name, err)
	}
	return i, nil
}

// describe reads all about a name in a folder.
// Extended attributes are read of files and folders only: they need the file opened, and to open a
// device may start something.
func describe(dir Folder, name string) (host.Info, error) {
	i, err := dir.Lstat(name)
	if err != nil || !i.Mode.IsRegular() && !i.Mode.IsDir() {
		return i, err
	}

	file, err := dir.Open(name)
	if err != nil {
		return i, unlessUnreadable(err)
	}
	defer file.Close()
	i.Xattrs, err = xattrs(file)
	return i, err
}

// unlessUnreadable drops the error of a file that this user may not open, or that the kernel
// lets no user read: what else is known of the file holds. If the machine is at its limits,
// nothing is known.
func unlessUnreadable(err error) error {
	var code syscall.Errno
	if !errors.As(err, &code) {
		return err
	}
	switch code {
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM:
		return err
	}

	return nil
}

// Readlink is View's.
func (f *Files) Readlink(name string) (string, error) {
	at, err := f.reach(name, false)
	if err != nil {
		return "", host.Failed("read link", name, err)
	}
	defer at.dir.Close()
	target, err := at.dir.Readlink(at.name)
	if err != nil {
		return "", at.fail("read link", name, err)
	}
	return target, nil
}

// ReadDir is View's.
func (f *Files) ReadDir(name string) ([]string, error) {
	at, err := f.reach(name, true)
	if err != nil {
		return nil, host.Failed("list", name, err)
	}
	defer at.dir.Close()
	dir, err := at.dir.Folder(at.name)
	if err != nil {
		return nil, at.fail("list", name, err)
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, at.fail("list", name, err)
	}
	slices.Sort(names)

	return names, nil
}

// ReadAt is View's.
func (f *Files) ReadAt(name string, p []byte, off int64) (int, error) {
	at, err := f.reach(name, true)
	if err != nil {
		return 0, host.Failed("read", name, err)
	}
	defer at.dir.Close()
	info, err := at.dir.Lstat(at.name)
	if err != nil || !info.Mode.IsRegular() {
		return 0, at.fail("read", name, cmp.Or(err, fs.ErrInvalid))
	}

	file, err := at.dir.Open(at.name)
	if err != nil {
		return 0, at.fail("read", name, err)
	}
	defer file.Close()
	n, err := file.ReadAt(p, off)
	if err != nil && err != io.EOF {
		err = at.fail("read", name, err)
	}

	return n, err
}

// ReadFile is View's.
func (f *Files) ReadFile(name string) ([]byte, error) {
	at, err := f.reach(name, true)
	if err != nil {
		return nil, host.Failed("read", name, err)
	}
	defer at.dir.Close()
	data, err := readRegular(at)
	if err != nil {
		return nil, at.fail("read", name, err)
	}
	return data, nil
}

func readRegular(at place) ([]byte, error) {
	// Checked before it is opened: opening a device may have an effect (a watchdog starts, a tape
	// rewinds).
	i, err := at.lstat()
	if err != nil {
		return nil, err
	}
	if !i.Mode.IsRegular() {
		return nil, notRegular(i.Mode)
	}

	file, err := at.dir.Open(at.name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	i, err = file.Stat()
	if err != nil {
		return nil, err
	}
	if !i.Mode.IsRegular() { // swapped in between
		return nil, notRegular(i.Mode)
	}
	if i.Size > host.MaxFile {
		return nil, errTooBig
	}

	return readAll(file, i.Size, at.of != nil)
}

// readAll reads a regular file. Its size is a hint: it is 0 for all of /proc and a page for all of
// /sys, whose files mostly have a few bytes. If nothing is written to the file (onlyRead), the size
// of a file on a disk is all of it: to read on for the end would be one more system call.
func readAll(file File, size int64, onlyRead bool) ([]byte, error) {
	var buf bytes.Buffer
	most := int64(host.MaxFile + 1)
	if size != int64(os.Getpagesize()) {
		buf.Grow(int(size) + bytes.MinRead)
		if onlyRead && size > 0 {
			most = size
		}
	}

	n, err := buf.ReadFrom(io.LimitReader(file, most))
	if err != nil {
		return nil, err
	}
	if n > host.MaxFile {
		return nil, errTooBig
	}

	return buf.Bytes(), nil
}

var errTooBig = fmt.Errorf("it is bigger than %d MiB", host.MaxFile>>20)

// Append is Host's. A file that does not end in a newline was torn by a power cut: a newline is put
// first, so that what is appended does not run into the torn line.
func (f *Files) Append(name string, data []byte) error {
	return f.at("append to", name, true, func(dir Folder, name string) error {
		return appendTo(dir, name, data, File.Sync)
	})
}

// Note is Host's.
func (f *Files) Note(name string, data []byte) error {
	return f.at("append to", name, true, func(dir Folder, name string) error {
		return appendTo(dir, name, data, func(File) error { return nil })
	})
}

func appendTo(dir Folder, name string, data []byte, settle func(File) error) error {
	file, err := openAppend(dir, name)
	if err != nil {
		return err
	}
	defer file.Close()
	i, err := file.Stat()
	if err != nil {
		return err
	}
	if !i.Mode.IsRegular() {
		return notRegular(i.Mode)
	}
	if i.Size == 0 {
		// The name is durable before the first byte: a file with bytes never needs this again,
		// whatever killed its maker.
		if err := dir.Sync(); err != nil {
			return err
		}
	} else {
		var last [1]byte
		if _, err := file.ReadAt(last[:], i.Size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			data = append([]byte{'\n'}, data...)
		}
	}

	if _, err := file.Write(data); err != nil {
		return err
	}

	return settle(file)
}

func openAppend(dir Folder, name string) (File, error) {
	i, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dir.Create(name)
	case err != nil:
		return nil, err
	case !i.Mode.IsRegular():
		return nil, notRegular(i.Mode)
	}

	return dir.OpenAppend(name)
}

// Room is View's. It asks the file system of the nearest folder that exists.
func (f *Files) Room(name string) (host.Room, error) {
	for ; ; name = path.Dir(name) {
		room, err := f.roomAt(name)
		if err == nil {
			return room, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || name == "/" {
			return host.Room{}, host.Failed("see how much room is left for", name, err)
		}
	}
}

// roomAt asks by a descriptor, never by a path: since Linux 3.12 fstatfs(2) takes a descriptor of
// O_PATH ("vfs: allow O_PATH file descriptors for fstatfs()"; open(2), O_PATH). Root may use all
// that is free, with the part that the file system keeps for root.
func (f *Files) roomAt(name string) (host.Room, error) {
	at, err := f.walk(name, true)
	if err != nil {
		return host.Room{}, err
	}
	defer at.dir.Close()
	dir, err := at.dir.Folder(at.name)
	if errors.Is(err, unix.ENOTDIR) { // a file
		dir, err = at.dir.Folder(".")
	}
	if err != nil {
		return host.Room{}, err
	}
	defer dir.Close()
	var s unix.Statfs_t
	if err := RetryEINTR(func() error { return unix.Fstatfs(int(dir.(realFolder)), &s) }); err != nil {
		return host.Room{}, err
	}

	room := host.Room{
		Bytes:    s.Bfree * uint64(s.Bsize),
		Files:    s.Ffree,
		ReadOnly: s.Flags&unix.ST_RDONLY != 0,
	}
	if s.Files == 0 { // btrfs
		room.Files = math.MaxUint64
	}

	return room, nil
}

// OpenDevices is View's.
func (f *Files) OpenDevices(pid int) ([]host.Device, error) {
	name := fmt.Sprintf("/proc/%d/fd", pid)
	found, err := f.openDevices(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, nil // the process has ended
	}
	if err != nil {
		return nil, host.Failed("list", name, err)
	}
	return found, nil
}

func (f *Files) openDevices(name string) ([]host.Device, error) {
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

	var found []host.Device
	seen := map[host.Device]bool{}
	for _, fd := range fds {
		d, err := dir.Device(fd)
		if err != nil {
			// Without CAP_SYS_PTRACE nothing is said of the files of a process that has more
			// rights: proc_pid_fd(5).
			if _, err := dir.Readlink(fd); errors.Is(err, fs.ErrPermission) {
				return nil, err
			}
			// What else cannot be described was closed, or lies on a file system that does not
			// answer us, like a dead NFS or another user's FUSE. The kernel opens no device there.
			continue
		}
		if d == (host.Device{}) || seen[d] {
			continue
		}

		seen[d] = true
		d.Name, _ = dir.Readlink(fd)
		found = append(found, d)
	}

	sorting.By(found, func(a, b host.Device) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})

	return found, nil
}
