// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/inject"
	"github.com/gpuadm/gpuadm/test/must"
)

// Touch is one system call by which a program changes files, or asks another program to do
// something.
type Touch struct {
	// N counts from 1, over all threads and children of the program.
	N    int
	Call string
	// What is the file or socket, if it is known before the call.
	What string
}

// Socket is What a touch names if it is a socket.
const Socket = "socket"

func (t Touch) String() string { return fmt.Sprintf("%d %s %s", t.N, t.Call, t.What) }

// Touches runs a program in the host and calls before ahead of each of its touches, while the whole
// program is stopped. If before returns false, the program is killed with signal 9 at that point,
// and the call is not made.
//
// It is made with ptrace(2), not with strace --inject, which counts calls for each thread by
// itself: a Go program's calls come from whatever thread is free.
func (h *Host) Touches(before func(Touch) bool, argv ...string) Result {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := h.inside(ctx, argv...)
	var result Result
	var err error
	inject.Alone(func() { // ptrace belongs to a thread
		result, err = (&tracer{before: before, calls: touchCalls()}).run(cmd)
	})
	must.That(h.t, err == nil, "cannot trace %s: %v", strings.Join(argv, " "), err)
	return result
}

type tracer struct {
	before  func(Touch) bool
	calls   map[uint64]string
	payload int // the program's process; 0 while nsenter has not started it yet
	count   int
	killed  bool
}

// traceOptions: follow threads and children, tell system calls from signals, and take all down with
// the tracer.
const traceOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |

	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

func (tr *tracer) run(cmd *exec.Cmd) (Result, error) {
	collect, err := outputs(cmd)
	if err != nil {
		return Result{}, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return Result{}, err
	}
	first := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(first, &status, unix.WALL, nil); err != nil { // stopped at its exec
		return Result{}, err
	}
	if err := unix.PtraceSetOptions(first, traceOptions); err != nil {
		return Result{}, err
	}
	exit, err := tr.loop(first)
	stdout, stderr := collect()
	return Result{stdout, stderr, exit}, err
}

// outputs gives a command pipes for its output. collect closes this process's ends of them for
// writing and waits for the text.
func outputs(cmd *exec.Cmd) (collect func() (stdout, stderr string), err error) {
	var texts [2]strings.Builder
	var writers [2]*os.File
	var reading sync.WaitGroup
	for i := range writers {
		reader, writer, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		writers[i] = writer
		reading.Go(func() {
			_, _ = io.Copy(&texts[i], reader)
			_ = reader.Close()
		})
	}

	cmd.Stdout = writers[0]
	cmd.Stderr = writers[1]

	return func() (stdout, stderr string) {
		for _, writer := range writers {
			_ = writer.Close()
		}
		reading.Wait()
		return texts[0].String(), texts[1].String()
	}, nil
}

// loop lets all traced threads go on from stop to stop until none is left; it returns the first
// one's exit code.
func (tr *tracer) loop(first int) (exit int, err error) {
	tid := first
	signal := 0
	for {
		if tid != 0 {
			// ESRCH: killed meanwhile; its end will be reported.
			if err := ptraceSyscall(tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
				return exit, fmt.Errorf("cannot go on: %w", err)
			}
		}

		// Only what this thread traces: see inject.Alone.
		var status unix.WaitStatus
		tid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			tid = 0
			continue
		case errors.Is(err, unix.ECHILD):
			return exit, nil
		case err != nil:
			return exit, fmt.Errorf("cannot wait: %w", err)
		}

		switch {
		case status.Exited() || status.Signaled():
			if tid == first {
				exit = exitCode(syscall.WaitStatus(status))
			}
			tid = 0
		case status.Stopped():
			signal = tr.stop(tid, status)
		}
	}
}

// stop handles one stop of one thread and returns the signal to go on with.
func (tr *tracer) stop(tid int, status unix.WaitStatus) (signal int) {
	stopped := status.StopSignal()
	switch {
	case stopped == unix.SIGTRAP|0x80: // a system call
		tr.call(tid)
		return 0
	case stopped == unix.SIGTRAP && status.TrapCause() > 0:
		if status.TrapCause() == unix.PTRACE_EVENT_EXEC && tr.payload == 0 {
			tr.payload = tid
		}
		return 0
	case stopped == unix.SIGSTOP: // a new thread starts so; no other process stops anything here
		return 0
	}

	return int(stopped)
}

// call handles a system call that is about to be made, and asks whether to go on if it is a touch.
func (tr *tracer) call(tid int) {
	if tr.payload == 0 || tr.killed {
		return
	}
	info, err := inject.Stopped(tid)
	const entry = 1
	if err != nil || info.Op != entry {
		return
	}
	name, ok := tr.calls[info.Nr]
	if !ok {
		return
	}
	what, ok := touched(tid, name, info.Args)
	if !ok {
		return
	}
	tr.count++
	if !tr.before(Touch{tr.count, name, what}) {
		tr.killed = true
		_ = unix.Kill(tr.payload, unix.SIGKILL)
	}
}

func ptraceSyscall(tid, signal int) error {
	// A program killed while it was stopped may be gone, or not yet gone: wait for either a little.
	err := unix.PtraceSyscall(tid, signal)
	for range 3 {
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(time.Millisecond)
		err = unix.PtraceSyscall(tid, signal)
	}

	return err
}

// touchCalls are the system calls that may be touches, by number. Programs built for arm64 have no
// others; those that only amd64 has (open, rename, …) Go does not use.
func touchCalls() map[uint64]string {
	return map[uint64]string{
		unix.SYS_OPENAT:  "openat",
		unix.SYS_OPENAT2: "openat2",

		unix.SYS_WRITE:           "write",
		unix.SYS_WRITEV:          "writev",
		unix.SYS_PWRITE64:        "pwrite64",
		unix.SYS_COPY_FILE_RANGE: "copy_file_range",
		unix.SYS_FTRUNCATE:       "ftruncate",
		unix.SYS_FALLOCATE:       "fallocate",
		unix.SYS_FSYNC:           "fsync",
		unix.SYS_FDATASYNC:       "fdatasync",

		unix.SYS_RENAMEAT:  "renameat",
		unix.SYS_RENAMEAT2: "renameat2",
		unix.SYS_LINKAT:    "linkat",
		unix.SYS_SYMLINKAT: "symlinkat",
		unix.SYS_UNLINKAT:  "unlinkat",
		unix.SYS_MKDIRAT:   "mkdirat",
		unix.SYS_MKNODAT:   "mknodat",

		unix.SYS_FCHMOD:    "fchmod",
		unix.SYS_FCHMODAT:  "fchmodat",
		unix.SYS_FCHOWN:    "fchown",
		unix.SYS_FCHOWNAT:  "fchownat",
		unix.SYS_UTIMENSAT: "utimensat",
		unix.SYS_FSETXATTR: "fsetxattr",
		unix.SYS_SETXATTR:  "setxattr",
		unix.SYS_LSETXATTR: "lsetxattr",

		unix.SYS_SENDMSG: "sendmsg",
		unix.SYS_SENDTO:  "sendto",
		unix.SYS_EXECVE:  "execve",
		unix.SYS_MOUNT:   "mount",
		unix.SYS_KILL:    "kill",
	}
}

// touched says what a call is about, and whether it is a touch: opening a file for reading is none,
// and neither is writing to a pipe, which is where the output goes, or waking a thread.
func touched(tid int, name string, args [6]uint64) (what string, ok bool) {
	switch name {
	case "openat":
		return inject.At(tid, args[0], args[1]), opensForWriting(args[2])
	case "openat2": // its third argument points to struct open_how, which begins with the flags
		return inject.At(tid, args[0], args[1]), opensForWriting(numberAt(tid, args[2]))
	case "renameat", "renameat2", "linkat":
		return inject.At(tid, args[0], args[1]) + " → " + inject.At(tid, args[2], args[3]), true
	case "symlinkat":
		return inject.At(tid, args[1], args[2]) + " → " + inject.Text(tid, args[0]), true
	case "unlinkat", "mkdirat", "mknodat", "fchmodat", "fchownat", "utimensat":
		return inject.At(tid, args[0], args[1]), true
	case "setxattr", "lsetxattr", "execve", "mount":
		return inject.Text(tid, args[0]), true
	case "kill":
		// The runtime interrupts its own threads with tgkill; kill is for other processes.
		return fmt.Sprintf("%d with %d", args[0], args[1]), true
	}

	descriptor := args[0]
	if name == "copy_file_range" {
		descriptor = args[2]
	}
	what = inject.Descriptor(tid, descriptor)
	if strings.HasPrefix(what, "socket:") {
		return Socket, true // its number is another each time
	}
	return what, strings.HasPrefix(what, "/") && what != os.DevNull
}

// opensForWriting says whether a file is opened to be made or changed.
func opensForWriting(flags uint64) bool {
	const writes = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC
	return flags&writes != 0
}

// numberAt is a number in a stopped thread's memory, 0 if it cannot be read.
func numberAt(tid int, address uint64) uint64 {
	number := uint64(0)
	bytes := inject.Peek(tid, address, 8)
	if len(bytes) != 8 {
		return 0
	}
	for i, b := range bytes {
		number |= uint64(b) << (8 * i)
	}
	return number
}
