// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"errors"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

type tracer struct {
	in    Injection
	first int // the program's first process, which leads its process group
	// leaving is what remains to be done when a thread's call returns.
	leaving map[int]func()
	exit    int
	count   int
	calls   []Call
	hit     *Call
	err     error
}

// options: follow threads and children, stop at the filter's calls, tell system calls from signals,
// and end all of them with the tracer.
const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_EXITKILL

func (t *tracer) run(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	t.first = cmd.Process.Pid
	var status unix.WaitStatus
	_, err := unix.Wait4(t.first, &status, unix.WALL, nil) // it stops at its exec
	if err == nil {
		err = unix.PtraceSetOptions(t.first, options)
	}
	if err == nil {
		err = install(t.first)
	}
	if err == nil {
		err = t.loop()
	}
	if err != nil {
		_ = unix.Kill(-t.first, unix.SIGKILL)
	}
	_ = cmd.Wait() // takes in the rest of the output; its error is that loop has waited for the process already
	return err
}

// loop lets all traced threads go on from stop to stop until none is left.
func (t *tracer) loop() error {
	for tid, signal := t.first, 0; ; {
		if tid != 0 {
			resume := unix.PtraceCont
			if t.leaving[tid] != nil {
				resume = unix.PtraceSyscall // it stops once more when its call returns
			}
			// ESRCH: killed meanwhile; the next wait tells of its end.
			if err := resume(tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}

		var status unix.WaitStatus
		var err error
		tid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil) // only what this thread traces: see Alone
		switch {
		case errors.Is(err, unix.EINTR):
			tid = 0
		case errors.Is(err, unix.ECHILD):
			return t.err
		case err != nil:
			return err
		case status.Stopped():
			signal = t.stop(tid, status)
		default:
			if tid == t.first {
				t.exit = status.ExitStatus()
				if status.Signaled() {
					t.exit = 128 + int(status.Signal())
				}
			}

			tid = 0
		}
	}
}

// stop deals with one stop of one thread and returns the signal to go on with.
func (t *tracer) stop(tid int, status unix.WaitStatus) (signal int) {
	switch sig := status.StopSignal(); {
	case sig == unix.SIGTRAP|0x80: // its call returns
		leave := t.leaving[tid]
		delete(t.leaving, tid)
		leave()
		return 0
	case sig == unix.SIGTRAP && status.TrapCause() == unix.PTRACE_EVENT_SECCOMP: // it enters a call
		t.enter(tid)
		return 0
	case sig == unix.SIGTRAP && status.TrapCause() > 0: // a clone, fork or exec
		return 0
	case sig == unix.SIGSTOP: // how a new thread starts; nothing else stops the program
		return 0
	default:
		return int(sig)
	}
}

// Syscall is a system call that a traced thread is at: struct ptrace_syscall_info of ptrace(2),
// PTRACE_GET_SYSCALL_INFO.
type Syscall struct {
	Op   uint8 // 1: it enters the call, 2: the call returns
	_    [3]uint8
	Arch uint32
	IP   uint64
	SP   uint64
	Nr   uint64
	Args [6]uint64
	_    [2]uint64
}

// Stopped returns the system call at which a traced thread has stopped.
func Stopped(tid int) (call Syscall, err error) {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid),
		unsafe.Sizeof(call), uintptr(unsafe.Pointer(&call)), 0, 0)
	if errno != 0 {
		return call, errno
	}
	return call, nil
}

func (t *tracer) enter(tid int) {
	info, err := Stopped(tid)
	if err != nil {
		t.failed(err)
		return
	}
	call, ok := mutating(tid, info)
	if !ok {
		return
	}
	t.calls = append(t.calls, call)
	if !t.in.Counts(call) {
		return
	}
	if t.count++; t.count == t.in.At {
		t.hit = &call
	} else if t.in.Kind != Full || t.hit == nil {
		return
	}

	switch t.in.Kind {
	case Kill:
		t.kill()
	case KillAfter:
		t.leaving[tid] = t.kill
	case Torn:
		at := lengthOf[call.Name]
		t.failed(change(tid, func(r *registers) { r.setArgument(at, info.Args[at]/2) }))
		t.leaving[tid] = t.kill
	case Errno, Full:
		t.failed(skip(tid, -int(t.in.Errno)))
	case Signal:
		t.failed(unix.Kill(t.first, t.in.Signal))
	}
}

func (t *tracer) kill() { t.failed(unix.Kill(-t.first, unix.SIGKILL)) }

// failed notes why the run is worth nothing; that a thread was killed meanwhile is no reason.
func (t *tracer) failed(err error) {
	if t.err == nil && !errors.Is(err, unix.ESRCH) {
		t.err = err
	}
}

// registers are what a stopped thread goes on with; how they are called depends on the machine.
type registers unix.PtraceRegs

func change(tid int, how func(*registers)) error {
	var r registers
	if err := unix.PtraceGetRegs(tid, (*unix.PtraceRegs)(&r)); err != nil {
		return err
	}
	how(&r)
	return unix.PtraceSetRegs(tid, (*unix.PtraceRegs)(&r))
}
