// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/inject"
)

// touchCalls are the system calls that may be touches, by number. Programs built for arm64 have no others; those that
// amd64 has beside them (open, rename, …) Go does not use.
func touchCalls() map[uint64]string {
	return map[uint64]string{
		unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2",
		unix.SYS_WRITE: "write", unix.SYS_WRITEV: "writev", unix.SYS_PWRITE64: "pwrite64", unix.SYS_COPY_FILE_RANGE: "copy_file_range",
		unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FALLOCATE: "fallocate", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync",
		unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_LINKAT: "linkat", unix.SYS_SYMLINKAT: "symlinkat",
		unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_MKNODAT: "mknodat",
		unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHOWN: "fchown", unix.SYS_FCHOWNAT: "fchownat",
		unix.SYS_UTIMENSAT: "utimensat", unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_SETXATTR: "setxattr", unix.SYS_LSETXATTR: "lsetxattr",
		unix.SYS_SENDMSG: "sendmsg", unix.SYS_SENDTO: "sendto", unix.SYS_EXECVE: "execve", unix.SYS_MOUNT: "mount", unix.SYS_KILL: "kill",
	}
}

// touched says what a call is about, and whether it is a touch: opening a file for reading is none, and neither is
// writing to a pipe, which is where the output goes, or waking a thread.
func touched(tid int, name string, args [6]uint64) (what string, ok bool) {
	const creates = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC
	switch name {
	case "openat":
		what, ok = inject.At(tid, args[0], args[1]), args[2]&creates != 0
	case "openat2": // its third argument points to struct open_how, which begins with the flags
		flags := uint64(0)
		if b := inject.Peek(tid, args[2], 8); len(b) == 8 {
			for i, v := range b {
				flags |= uint64(v) << (8 * i)
			}
		}
		what, ok = inject.At(tid, args[0], args[1]), flags&creates != 0
	case "renameat", "renameat2", "linkat":
		what, ok = inject.At(tid, args[0], args[1])+" → "+inject.At(tid, args[2], args[3]), true
	case "symlinkat":
		what, ok = inject.At(tid, args[1], args[2])+" → "+inject.Text(tid, args[0]), true
	case "unlinkat", "mkdirat", "mknodat", "fchmodat", "fchownat", "utimensat":
		what, ok = inject.At(tid, args[0], args[1]), true
	case "setxattr", "lsetxattr", "execve", "mount":
		what, ok = inject.Text(tid, args[0]), true
	case "kill":
		// The runtime interrupts its own threads with tgkill; kill is for other processes.
		what, ok = fmt.Sprintf("%d with %d", args[0], args[1]), true
	default: // the first argument is a descriptor
		what = inject.Descriptor(tid, args[0])
		if name == "copy_file_range" {
			what = inject.Descriptor(tid, args[2])
		}
		ok = strings.HasPrefix(what, "/") && what != os.DevNull || strings.HasPrefix(what, "socket:")
		if strings.HasPrefix(what, "socket:") {
			what = "socket" // its number is another each time
		}
	}
	return what, ok
}
