// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"golang.org/x/sys/unix"
)

// question is a question to the driver that a child of gpuadm asks.
type question struct {
	self  string        // the program to start: gpuadm
	argv  []string      // a verb, and what it takes
	env   []string      // more of the environment
	limit time.Duration // how long the child may give no sign
	most  time.Duration // how long it may take in all
	sign  sign          // shows that the child is at work
	every time.Duration // how often a sign is looked for

	after func(time.Duration) <-chan time.Time // time.After
}

// reply is what a child has written for its parent.
type reply struct {
	text  []byte
	ended string        // why it has no end; "" for a whole one
	late  time.Duration // for how long the child was waited for in vain; 0 if it has ended
}

// ask runs the child, and returns what it has written. A child in uninterruptible sleep cannot be
// killed, and a process with such a thread cannot end, so gpuadm does not wait for the child after
// the limit.
// Source: proc_pid_stat(5), state D; do_exit and exit_notify in kernel/exit.c of the kernel's tree.
func (q question) ask(ctx context.Context) (reply, error) {
	fd, err := unix.MemfdCreate("gpuadm-child", unix.MFD_CLOEXEC)
	if err != nil {
		return reply{}, host.Failed("make room for", "the driver's answer", err)
	}

	answer := os.NewFile(uintptr(fd), "the driver's answer")
	defer answer.Close()
	cmd := exec.Cmd{
		Path:        q.self,
		Args:        append([]string{"gpuadm"}, q.argv...),
		Dir:         "/",
		Env:         append(commands.Environment(), q.env...),
		ExtraFiles:  []*os.File{answer},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := context.Cause(ctx); err != nil {
		return reply{}, err
	}
	if err := cmd.Start(); err != nil {
		return reply{}, host.Failed("start", "gpuadm "+q.argv[0], err)
	}

	wait := make(chan error, 1)
	go func() { wait <- cmd.Wait() }()
	late, err := q.await(ctx, wait, child{cmd.Process.Pid, answer})
	switch {
	case late > 0:
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		text, err := written(answer)
		return reply{text, fmt.Sprintf("it gave no answer within %v and was killed", late), late}, err
	case ctx.Err() != nil:
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return reply{}, context.Cause(ctx)
	case err != nil:
		return reply{ended: "it ended without an answer: " + err.Error()}, nil
	}

	text, err := written(answer)
	return reply{text: text}, err
}

// await returns for how long it waited for the child in vain, or the error with which the
// child ended.
func (q question) await(ctx context.Context, ended <-chan error, c child) (late time.Duration, err error) {
	seen := 0
	sinceSign := time.Duration(0)
	for waited := time.Duration(0); ; {
		select {
		case err := <-ended:
			return 0, err
		case <-ctx.Done():
			return 0, nil
		case <-q.after(q.every):
		}

		waited += q.every
		sinceSign += q.every
		if now, isSign := q.sign(c, seen, q.every); isSign {
			seen = now
			sinceSign = 0
		}
		switch {
		case sinceSign >= q.limit:
			return q.limit, nil
		case waited >= q.most:
			return waited, nil
		}
	}
}

// written is what a child has written so far.
func written(answer *os.File) ([]byte, error) {
	const most = 16 << 20 // bytes
	return io.ReadAll(io.NewSectionReader(answer, 0, most))
}

// parent returns the file into which a child writes its answer.
func parent() *os.File { return os.NewFile(3, "the parent") }
