// SPDX-License-Identifier: Apache-2.0

package inject

import "golang.org/x/sys/unix"

func (r *registers) setArgument(n int, to uint64) {
	*[...]*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9}[n] = to
}

func (r *registers) setCall(nr uint64)   { r.Rax = nr }
func (r *registers) setResult(to int)    { r.Rax = uint64(to) }
func (r *registers) result() int         { return int(r.Rax) }
func (r *registers) instruction() uint64 { return r.Rip }
func (r *registers) stack() uint64       { return r.Rsp }

// callInstruction is "syscall".
var callInstruction = []byte{0x0f, 0x05}

// skip makes the kernel leave out the call that a thread has just entered, and return a result.
func skip(tid, result int) error {
	return change(tid, func(r *registers) { r.Orig_rax = ^uint64(0); r.setResult(result) })
}

// oldCalls are those that this architecture has beside the ones that all have: C programs use them,
// Go does not.
func oldCalls() map[uint64]string {
	return map[uint64]string{
		unix.SYS_OPEN: "open", unix.SYS_CREAT: "creat", unix.SYS_RENAME: "rename", unix.SYS_UNLINK: "unlink",
		unix.SYS_MKDIR: "mkdir", unix.SYS_RMDIR: "rmdir", unix.SYS_SYMLINK: "symlink", unix.SYS_LINK: "link",
		unix.SYS_CHMOD: "chmod", unix.SYS_CHOWN: "chown", unix.SYS_LCHOWN: "lchown", unix.SYS_MKNOD: "mknod",
	}
}
