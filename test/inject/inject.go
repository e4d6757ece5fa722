// SPDX-License-Identifier: Apache-2.0

// Package inject runs an unmodified program and makes one of its system calls that change files go
// wrong: the program is killed there, or the call fails, or a signal arrives. Tests use it to show
// that a program leaves nothing behind that it cannot deal with the next time.
//
// It is made with ptrace(2), not with strace's inject, which counts calls for each thread by
// itself: a Go program's calls come from whatever thread is free, so "the 17th call that changes a
// file" has no number there.
package inject

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Kind is what happens at a system call.
type Kind int

const (
	// Nothing happens: the calls are only counted.
	Nothing Kind = iota
	// Kill ends the program with SIGKILL before the call is made.
	Kill
	// KillAfter ends it once the call has returned.
	KillAfter
	// Torn lets a write write half of what it was given, and then ends the program. Only writes
	// count.
	Torn
	// Errno makes the call return an error in place of doing anything.
	Errno
	// Full does so from this call on to all that need room on a disk, as on one that is full. Only
	// those count.
	Full
	// Signal sends a signal while the program makes the call; what the program does then is its own
	// affair.
	Signal
)

// Injection is what shall happen, and at which of the program's mutating calls: counted from 1,
// over all of its threads and children, in the order in which they enter them. A zero At never
// comes.
type Injection struct {
	Kind   Kind
	At     int
	Errno  syscall.Errno
	Signal syscall.Signal
}

func (i Injection) String() string {
	switch i.Kind {
	case Kill:
		return "kill"
	case KillAfter:
		return "kill-after"
	case Torn:
		return "torn"
	case Errno:
		return strings.ToLower(unix.ErrnoName(i.Errno))
	case Full:
		return "full"
	case Signal:
		return "signal"
	default:
		return "nothing"
	}
}

// Counts says whether a call can be the one at which the injection is made.
func (i Injection) Counts(c Call) bool {
	switch i.Kind {
	case Torn:
		return lengthOf[c.Name] != 0
	case Full:
		return lengthOf[c.Name] != 0 || strings.HasPrefix(c.Name, "mkdir") || strings.HasPrefix(c.Name, "symlink")
	default:
		return true
	}
}

// Call is one mutating system call, as the program entered it.
type Call struct {
	Name string
	// What is the file it is about, if it is known before the call.
	What string
}

func (c Call) String() string { return c.Name + " " + c.What }

// Result is how the run ended.
type Result struct {
	Stdout, Stderr string
	// Exit is the exit status, or 128 and the number of the signal that ended the program.
	Exit int
	// Calls are all mutating calls that were entered.
	Calls []Call
	// Hit is the call at which the injection was made; nil if the program ended before.
	Hit *Call
}

// Run runs a command to its end with one injection. It takes the command's output, so Stdout and
// Stderr must be unset. An error says that the command could not be traced, not that it failed.
func Run(cmd *exec.Cmd, in Injection) (r Result, err error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	t := &tracer{in: in, leaving: map[int]func(){}}
	Alone(func() { err = t.run(cmd) }) // ptrace belongs to a thread
	r.Stdout, r.Stderr, r.Exit, r.Calls, r.Hit = stdout.String(), stderr.String(), t.exit, t.calls, t.hit
	if err != nil {
		return r, fmt.Errorf("cannot trace %s: %w", cmd, err)
	}
	return r, nil
}
