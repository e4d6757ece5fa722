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

// child runs gpuadm's own program with a verb, and returns what it has written for its parent;
// ended says why there is nothing. A child in uninterruptible sleep cannot be killed, and a process
// with a thread in it cannot end: gpuadm does not wait for the child after its time.
// Source: proc_pid_stat(5), state D; do_exit and exit_notify in kernel/exit.c of the kernel's tree.
func child(ctx context.Context, self string, over <-chan time.Time, limit time.Duration, env []string, argv ...string) (text []byte, ended string, err error) {
	fd, err := unix.MemfdCreate("gpuadm-child", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", host.Failed("make room for", "the driver's answer", err)
	}
	answer := os.NewFile(uintptr(fd), "the driver's answer")
	defer answer.Close()
	cmd := exec.Cmd{
		Path: self, Args: append([]string{"gpuadm"}, argv...), Dir: "/", ExtraFiles: []*os.File{answer},
		Env: append(commands.Environment(), env...), SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := context.Cause(ctx); err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", host.Failed("start", "gpuadm "+argv[0], err)
	}
	wait := make(chan error, 1)
	go func() { wait <- cmd.Wait() }()
	select {
	case err = <-wait:
	case <-over:
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, fmt.Sprintf("it gave no answer within %v and was killed", limit), nil
	case <-ctx.Done():
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, "", context.Cause(ctx)
	}
	if err != nil {
		return nil, "it ended without an answer: " + err.Error(), nil
	}
	const most = 16 << 20
	text, err = io.ReadAll(io.NewSectionReader(answer, 0, most))
	return text, "", err
}

// parent is where a child writes its answer.
func parent() *os.File { return os.NewFile(3, "the parent") }

// DriverVerb is the verb by which gpuadm starts itself to ask the driver.
const DriverVerb = "ask-driver"

// driverSays is the child's answer.
type driverSays struct {
	Driver host.Driver
	None   *host.NoDriver
	Error  string
}

// SayDriver is the child: it asks the driver, and tells its parent.
func (d *NVML) SayDriver(ctx context.Context) error {
	said := driverSays{}
	d.more = true
	found, err := d.Driver(ctx)
	if said.Driver = found; err != nil && !errors.As(err, &said.None) {
		said.Error = err.Error()
	}
	return json.NewEncoder(parent()).Encode(said)
}

// DriverWithin asks the driver in a child. Where it has not answered in time, the error is a
// NoDriver of the code host.Overdue.
func (d *NVML) DriverWithin(ctx context.Context, limit time.Duration) (host.Driver, error) {
	began := time.Now()
	text, ended, err := child(ctx, "/proc/self/exe", time.After(limit), limit, nil, DriverVerb)
	said := driverSays{}
	switch {
	case err != nil:
		return host.Driver{}, err
	case ended != "" && time.Since(began) >= limit:
		return host.Driver{}, host.NoAnswer(limit)
	case ended != "": // a library that lacks a function, or that ends its process
		return host.Driver{}, &host.NoDriver{Why: "gpuadm " + DriverVerb + ": " + ended, Try: "install the libraries of the driver again, all in one version"}
	case json.Unmarshal(text, &said) != nil:
		return host.Driver{}, errors.New("cannot read what gpuadm " + DriverVerb + " says")
	case said.None != nil:
		return host.Driver{}, said.None
	case said.Error != "":
		return host.Driver{}, errors.New(said.Error)
	}
	return said.Driver, nil
}
