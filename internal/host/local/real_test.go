// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// races is how often an attacker must have won, and have lost, before a race counts as run. Only the
// limit of go test ends a race that is none.
const races = 100

// TestSwappedFolder swaps a folder for links out of the root as fast as it can while files are
// written, read and removed through it: nothing outside may be seen or touched. A link is followed
// by its text inside the root, where there is no such folder.
func TestSwappedFolder(t *testing.T) {
	h, dir := openFolder(t)
	outside := tempDir(t)
	canary := filepath.Join(outside, "file")
	must.OK(t, os.WriteFile(canary, []byte("outside"), 0o644))
	up, err := filepath.Rel(filepath.Join(dir, "d"), outside)
	must.OK(t, err)
	must.OK(t, h.Mkdir("/d", ownedBySelf(0o755)))
	must.OK(t, h.Mkdir("/d/real", ownedBySelf(0o755)))
	d := func(name string) string { return filepath.Join(dir, "d", name) }
	must.OK(t, os.Symlink(outside, d("absolute")))
	must.OK(t, os.Symlink(up, d("relative")))
	defer swapping(t, d("real"), d("absolute"), d("relative"))()
	for wrote, failed := 0, 0; wrote < races || failed < races; {
		if err := h.WriteFile("/d/real/file", []byte("inside"), ownedBySelf(0o644)); err == nil {
			wrote++
		} else {
			failed++
		}

		data, _ := h.ReadFile("/d/real/file")
		must.That(t, string(data) != "outside", "read a file outside of the root")
		h.SetAttr("/d/real/file", ownedBySelf(0o600))
		h.Append("/d/real/file", []byte("x"))
		h.Remove("/d/real/file")
	}

	untouched(t, canary)
	names, _ := os.ReadDir(outside)
	check.That(t, len(names) == 1, "outside there is %v", names)
}

// swapping swaps a name for one of the others and back, over and over, until the returned function
// is called.
func swapping(t *testing.T, name string, others ...string) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}

			other := others[i%len(others)]
			unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, name, unix.RENAME_EXCHANGE)
			unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, name, unix.RENAME_EXCHANGE)
		}
	}()
	return func() { close(done); <-stopped }
}

func untouched(t *testing.T, canary string) {
	t.Helper()
	data, err := os.ReadFile(canary)
	must.OK(t, err)
	i, err := os.Stat(canary)
	check.That(t, string(data) == "outside" && err == nil && i.Mode() == 0o644, "the file outside is %q, %v (%v)", data, i.Mode(), err)
}

// TestSwappedFile does the same with a file: it is a link out of the root just when it is opened.
func TestSwappedFile(t *testing.T) {
	h, dir := openFolder(t)
	canary := filepath.Join(tempDir(t), "file")
	must.OK(t, os.WriteFile(canary, []byte("outside"), 0o644))
	must.OK(t, h.WriteFile("/file", []byte("inside"), ownedBySelf(0o644)))
	must.OK(t, os.Symlink(canary, filepath.Join(dir, "link")))
	defer swapping(t, filepath.Join(dir, "file"), filepath.Join(dir, "link"))()
	for read, failed := 0, 0; read < races || failed < races; {
		data, err := h.ReadFile("/file")
		if err == nil {
			read++
		} else {
			failed++
		}

		must.That(t, string(data) != "outside", "read a file outside of the root")
		h.SetAttr("/file", ownedBySelf(0o600))
		h.Append("/file", []byte("x"))
	}

	untouched(t, canary)
}

// TestStrangeFiles reads what must not be waited for.
func TestStrangeFiles(t *testing.T) {
	h, dir := openFolder(t)
	must.OK(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	opened := opens(t, filepath.Join(dir, "fifo"))
	must.OK(t, os.WriteFile(filepath.Join(dir, "big"), nil, 0o600))
	must.OK(t, os.Truncate(filepath.Join(dir, "big"), host.MaxFile+1))
	for name, want := range map[string]string{
		"/fifo": "cannot read /fifo: it is a FIFO, not a regular file",
		"/big":  "cannot read /big: it is bigger than 64 MiB",
	} {
		_, err := h.ReadFile(name)
		check.That(t, err != nil && err.Error() == want, "%v, want %s", err, want)
	}

	check.That(t, !opened(), "the FIFO was opened")
	f := must.Get(os.OpenFile(filepath.Join(dir, "fifo"), os.O_RDONLY|syscall.O_NONBLOCK, 0))(t)
	f.Close()
	check.That(t, opened(), "an opened FIFO is not noticed")

	err := h.WriteFile("/fifo", nil, ownedBySelf(0o600))
	check.That(t, errors.Is(err, fs.ErrInvalid), "wrote to a FIFO: %v", err)
	err = h.Append("/fifo", nil)
	check.That(t, errors.Is(err, fs.ErrInvalid), "appended to a FIFO: %v", err)
}

// opens returns a function that reports whether a file was opened since: inotify(7). An open file
// descriptor that only names the file (O_PATH) does not count.
func opens(t *testing.T, name string) (opened func() bool) {
	t.Helper()
	fd := must.Get(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC))(t)
	t.Cleanup(func() { unix.Close(fd) })
	must.Get(unix.InotifyAddWatch(fd, name, unix.IN_OPEN))(t)
	return func() bool {
		n, err := unix.Read(fd, make([]byte, 4096))
		return n > 0 && err == nil
	}
}

func TestKernelFiles(t *testing.T) {
	live, err := local.Open("/")
	must.OK(t, err)
	if data, err := live.ReadFile("/proc/self/status"); err != nil || !strings.Contains(string(data), "Pid:") {
		t.Errorf("%.20q (%v)", data, err)
	}
	if _, err := live.ReadFile("/dev/zero"); err == nil || err.Error() != "cannot read /dev/zero: it is a device, not a regular file" {
		t.Error(err)
	}
	if i, err := live.Stat("/dev/null"); err != nil || i.Mode&fs.ModeCharDevice == 0 {
		t.Errorf("%v (%v)", i.Mode, err)
	}
	check.That(t, live.Live() && live.Root() == "/", "the running machine is not live")
	// Links of the kernel that lead to more than they say are taken by what they say.
	exe, err := os.Executable()
	must.OK(t, err)
	at, err := live.Resolve("/proc/self/exe")
	check.That(t, err == nil && at == exe, "/proc/self/exe leads to %s (%v), want %s", at, err, exe)
}

// TestACL keeps and takes off access control lists and capabilities, which are extended attributes.
func TestACL(t *testing.T) {
	dir := t.TempDir() // a real disk: file systems in memory differ in what they have
	h, err := local.Open(dir)
	must.OK(t, err)
	// acl(5), the form in Linux: version 2, then (tag, permissions, ID) each: user, user 7, group,
	// mask, other.
	acl := "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\x07\x00\x00\x00" +
		"\x04\x00\x00\x00\xff\xff\xff\xff" + "\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"
	attr := ownedBySelf(0o640)
	attr.Xattrs = map[string]string{"system.posix_acl_access": acl}
	err = h.WriteFile("/x", []byte("x"), attr)
	if errors.Is(err, syscall.ENOTSUP) {
		t.Skip("the file system has no ACLs:", err)
	}
	must.OK(t, err)
	has := func(name string, mode fs.FileMode, want string) {
		t.Helper()
		i, err := h.Lstat(name)
		check.That(t, err == nil && i.Mode == mode && i.Xattrs["system.posix_acl_access"] == want, "%s: %v %q (%v)", name, i.Mode, i.Xattrs, err)
	}

	has("/x", 0o640, acl)
	must.OK(t, h.WriteFile("/x", []byte("y"), ownedBySelf(0o640)))
	has("/x", 0o640, acl)

	// A folder's default is for new files only.
	must.OK(t, h.Mkdir("/d", ownedBySelf(0o755)))
	must.OK(t, h.WriteFile("/d/old", nil, ownedBySelf(0o640)))
	must.OK(t, h.SetAttr("/d", host.Attr{
		Mode:   0o755,
		UID:    os.Getuid(),
		GID:    os.Getgid(),
		Xattrs: map[string]string{"system.posix_acl_default": acl},
	}))
	must.OK(t, h.WriteFile("/d/old", []byte("x"), ownedBySelf(0o640)))
	has("/d/old", 0o640, "")
	must.OK(t, h.WriteFile("/d/new", []byte("x"), ownedBySelf(0o640)))
	i, err := h.Lstat("/d/new")
	check.That(t, err == nil && i.Mode == 0o640 && i.Xattrs["system.posix_acl_access"] != "", "the folder's default was not taken: %v %q (%v)", i.Mode, i.Xattrs, err)

	if os.Getuid() != 0 {
		t.Skip("capabilities are root's")
	}
	// capability.h, revision 2: CAP_NET_BIND_SERVICE, effective.
	bind := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	attr.Mode, attr.UID, attr.Xattrs = 0o755, 7, map[string]string{"security.capability": bind}
	must.OK(t, h.WriteFile("/x", []byte("x"), attr))
	i, err = h.Lstat("/x")
	check.That(t, err == nil && i.Mode == 0o755 && i.UID == 7 && i.Xattrs["security.capability"] == bind, "%v %d %q (%v)", i.Mode, i.UID, i.Xattrs, err)
	must.OK(t, h.WriteFile("/x", []byte("y"), host.Attr{Mode: 0o755, UID: 7}))
	i, err = h.Lstat("/x")
	check.That(t, err == nil && i.Xattrs["security.capability"] == bind, "the capability was lost: %q (%v)", i.Xattrs, err)
}

// TestImmutable says what the kernel does not.
func TestImmutable(t *testing.T) {
	dir := t.TempDir()
	h, err := local.Open(dir)
	must.OK(t, err)
	must.OK(t, h.WriteFile("/x", []byte("old"), ownedBySelf(0o644)))
	f, err := os.Open(filepath.Join(dir, "x"))
	must.OK(t, err)
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
		t.Skip("no immutable files here:", err)
	}
	defer unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
	err = h.WriteFile("/x", []byte("new"), ownedBySelf(0o644))
	check.That(t, err != nil && err.Error() == "cannot write /x: it is immutable (chattr +i)" && errors.Is(err, fs.ErrPermission), "%v", err)
	err = h.Replace("/x", replaced(), agree)
	check.That(t, err != nil && err.Error() == "cannot write /x: it is immutable (chattr +i)", "%v", err)
	names, _ := h.ReadDir("/")
	check.That(t, len(names) == 1, "left %v", names)
	i, err := h.Stat("/x")
	check.That(t, i.Chattr == "i" && err == nil, "%+v (%v)", i, err)
	must.OK(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_APPEND))
	i, err = h.Lstat("/x")
	check.That(t, i.Chattr == "a" && err == nil, "%+v (%v)", i, err)
	must.OK(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0))
	i, err = h.Lstat("/x")
	check.That(t, i.Chattr == "" && err == nil, "%+v (%v)", i, err)
}

// TestTimesOfAFile: chmod changes a file's ctime alone, so its mtime says when its content changed.
func TestTimesOfAFile(t *testing.T) {
	dir := t.TempDir()
	written := time.Unix(1700000000, 5000)
	must.OK(t, errors.Join(os.WriteFile(dir+"/file", nil, 0o600), os.Chtimes(dir+"/file", written, written)))
	folder, err := local.FolderOf(dir)
	must.OK(t, err)
	defer folder.Close()
	i, err := folder.Lstat("file")
	check.That(t, err == nil && i.Mtime.Equal(written) && i.Ctime.After(written), "mtime %s, ctime %s, %v; want mtime %s", i.Mtime, i.Ctime, err, written)
}
