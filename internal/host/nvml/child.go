// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"encoding/json"
	"errors"
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
	self  string           // the program to start: gpuadm
	argv  []string         // a verb, and what it takes
	env   []string         // more of the environment
	limit time.Duration    // how long the child may take
	over  <-chan time.Time // says that the limit is over
}

// ask runs the child, and returns what it has written for its parent; ended says why it has written
// nothing. A child in uninterruptible sleep cannot be killed, and a process with such a thread
// cannot end, so gpuadm does not wait for the child after the limit.
// Source: proc_pid_stat(5), state D; do_exit and exit_notify in kernel/exit.c of the kernel's tree.
func (q question) ask(ctx context.Context) (text []byte, ended string, err error) {
	fd, err := unix.MemfdCreate("gpuadm-child", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", host.Failed("make room for", "the driver's answer", err)
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
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", host.Failed("start", "gpuadm "+q.argv[0], err)
	}

	wait := make(chan error, 1)
	go func() { wait <- cmd.Wait() }()
	select {
	case err = <-wait:
	case <-q.over:
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, fmt.Sprintf("it gave no answer within %v and was killed", q.limit), nil
	case <-ctx.Done():
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, "", context.Cause(ctx)
	}
	if err != nil {
		return nil, "it ended without an answer: " + err.Error(), nil
	}

	const maxAnswer = 16 << 20 // bytes
	text, err = io.ReadAll(io.NewSectionReader(answer, 0, maxAnswer))

	return text, "", err
}

// parent returns the file into which a child writes its answer.
func parent() *os.File { return os.NewFile(3, "the parent") }

// DriverVerb is the verb by which gpuadm starts itself to ask the driver.
const DriverVerb = "ask-driver"

// driverAnswer is what the child writes.
type driverAnswer struct {
	Driver host.Driver
	None   *host.NoDriver
	Error  string
}

// SayDriver is the child: it asks the driver, and writes the answer for its parent.
func (d *NVML) SayDriver(ctx context.Context) error {
	d.more = true
	found, err := d.Driver(ctx)
	answer := driverAnswer{Driver: found}
	if err != nil && !errors.As(err, &answer.None) {
		answer.Error = err.Error()
	}
	return json.NewEncoder(parent()).Encode(answer)
}

// DriverWithin asks the driver in a child. Where it has not answered in time, the error is a
// NoDriver of the code host.Overdue.
func (d *NVML) DriverWithin(ctx context.Context, limit time.Duration) (host.Driver, error) {
	began := time.Now()
	q := question{
		self:  "/proc/self/exe",
		argv:  []string{DriverVerb},
		limit: limit,
		over:  time.After(limit),
	}
	text, ended, err := q.ask(ctx)
	answer := driverAnswer{}
	switch {
	case err != nil:
		return host.Driver{}, err
	case ended != "" && time.Since(began) >= limit:
		return host.Driver{}, host.NoAnswer(limit)
	case ended != "": // a library that lacks a function, or that ends its process
		return host.Driver{}, &host.NoDriver{
			Why: "gpuadm " + DriverVerb + ": " + ended,
			Try: "install the libraries of the driver again, all in one version",
		}
	case json.Unmarshal(text, &answer) != nil:
		return host.Driver{}, errors.New("cannot read what gpuadm " + DriverVerb + " says")
	case answer.None != nil:
		return host.Driver{}, answer.None
	case answer.Error != "":
		return host.Driver{}, errors.New(answer.Error)
	}
	return answer.Driver, nil
}
