// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// names are the system calls that may change files, by number.
var names = sync.OnceValue(func() map[uint64]string {
	all := map[uint64]string{
		unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2",
		unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITEV: "writev", unix.SYS_PWRITEV: "pwritev",
		unix.SYS_COPY_FILE_RANGE: "copy_file_range", unix.SYS_SENDFILE: "sendfile", unix.SYS_FALLOCATE: "fallocate",
		unix.SYS_TRUNCATE: "truncate", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync",
		unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_LINKAT: "linkat", unix.SYS_SYMLINKAT: "symlinkat",
		unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_MKNODAT: "mknodat", unix.SYS_UTIMENSAT: "utimensat",
		unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHMODAT2: "fchmodat2",
		unix.SYS_FCHOWN: "fchown", unix.SYS_FCHOWNAT: "fchownat",
		unix.SYS_SETXATTR: "setxattr", unix.SYS_LSETXATTR: "lsetxattr", unix.SYS_FSETXATTR: "fsetxattr",
		unix.SYS_REMOVEXATTR: "removexattr", unix.SYS_LREMOVEXATTR: "lremovexattr", unix.SYS_FREMOVEXATTR: "fremovexattr",
	}
	maps.Copy(all, oldCalls())
	return all
})

// lengthOf says of a call that writes which of its arguments is how much. It is never the first.
var lengthOf = map[string]int{"write": 2, "pwrite64": 2, "writev": 2, "pwritev": 2}

// flagsOf says of a call that opens which of its arguments has the flags, and changes are those
// that can change a file.
var flagsOf = map[string]uint32{"open": 1, "openat": 2}

const changes = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC

// mutating says what a thread is about to do, and whether it changes files: writing to a pipe or a
// device, which is where output goes, does not. Files that are opened for reading do not come here:
// see filter.
func mutating(tid int, info Syscall) (Call, bool) {
	name, ok := names()[info.Nr]
	if !ok {
		return Call{}, false
	}
	a := info.Args
	var what string
	switch name {
	case "openat":
		what = At(tid, a[0], a[1])
	case "openat2": // its third argument points to struct open_how, which begins with the flags
		flags := append(Peek(tid, a[2], 8), make([]byte, 8)...)
		what, ok = At(tid, a[0], a[1]), binary.NativeEndian.Uint64(flags)&changes != 0
	case "renameat", "renameat2", "linkat":
		what = At(tid, a[0], a[1]) + " → " + At(tid, a[2], a[3])
	case "rename", "link":
		what = At(tid, cwd, a[0]) + " → " + At(tid, cwd, a[1])
	case "symlinkat":
		what = At(tid, a[1], a[2]) + " → " + Text(tid, a[0])
	case "symlink":
		what = At(tid, cwd, a[1]) + " → " + Text(tid, a[0])
	case "unlinkat", "mkdirat", "mknodat", "utimensat", "fchmodat", "fchmodat2", "fchownat":
		what = At(tid, a[0], a[1])
	case "open", "creat", "unlink", "mkdir", "rmdir", "chmod", "chown", "lchown", "mknod", "truncate",
		"setxattr", "lsetxattr", "removexattr", "lremovexattr":
		what = At(tid, cwd, a[0])
	case "copy_file_range":
		what, ok = file(tid, a[2])
	default: // the first argument is a descriptor
		what, ok = file(tid, a[0])
	}

	return Call{name, what}, ok && what != os.DevNull
}

// file is what a descriptor leads to, and whether it is a file or a folder.
func file(tid int, fd uint64) (string, bool) {
	var st unix.Stat_t // os.FileMode takes an eventfd, which has an inode without a type, for a file
	err := unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)), &st)
	kind := st.Mode & unix.S_IFMT
	return Descriptor(tid, fd), err == nil && (kind == unix.S_IFREG || kind == unix.S_IFDIR)
}

// cwd is a folder's descriptor as calls without one have it.
const cwd = uint64(0xffffffff_ffffff9c) // AT_FDCWD

// At is a name relative to a folder's descriptor.
func At(tid int, dir, name uint64) string {
	n := Text(tid, name)
	if strings.HasPrefix(n, "/") {
		return n
	}
	folder := Descriptor(tid, dir)
	if int32(dir) == unix.AT_FDCWD {
		folder, _ = os.Readlink(fmt.Sprintf("/proc/%d/cwd", tid))
	}
	return strings.TrimSuffix(folder, "/") + "/" + n
}

// Descriptor is what a traced thread's descriptor leads to.
func Descriptor(tid int, fd uint64) string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)))
	return name
}

// Text reads a string of the traced thread's memory.
func Text(tid int, addr uint64) string {
	b, _, _ := bytes.Cut(Peek(tid, addr, 512), []byte{0})
	return string(b)
}

// Peek reads up to n bytes of the traced thread's memory; fewer where it ends.
func Peek(tid int, addr uint64, n int) []byte {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return nil
	}
	defer func() { _ = mem.Close() }()
	b := make([]byte, n)
	n, _ = mem.ReadAt(b, int64(addr))
	return b[:n]
}
