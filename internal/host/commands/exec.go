// SPDX-License-Identifier: Apache-2.0

// Package commands runs the machine's programs, in an environment that is the same however gpuadm
// was called.
package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
)

const (
	askLimit   = 30 * time.Second // for a command that only looks
	killAfter  = 10 * time.Second // from SIGTERM to SIGKILL
	askKill    = 1 * time.Second  // the same of a command that only looks: it has nothing to finish
	maxOutput  = 16 << 20         // bytes of standard output
	maxStderr  = 4 << 10          // bytes of standard error, the last ones
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Runner runs commands on the running machine, or in an image: argv as given, no shell, standard
// input empty, a process group of its own.
type Runner struct {
	kill time.Duration // from SIGTERM to SIGKILL
	max  int           // bytes of standard output

	// Start starts a program: in an image, in the image's root folder.
	Start func(*exec.Cmd) error
	// Mode returns the mode of a program's file.
	Mode func(name string) (fs.FileMode, error)
	// Env is added to the common environment.
	Env []string
	// Self is the name of gpuadm's own file for its programs; "" lets them inherit the open file.
	Self string
	// Root is the programs' root folder, in which they run without the caller's terminal; "" for
	// this process's own.
	Root string
	// Follow receives what the commands of Do print; may be nil.
	Follow Follow
}

func New() Runner {
	return Runner{
		kill:  killAfter,
		max:   maxOutput,
		Start: (*exec.Cmd).Start,
		Mode:  modeOf,
	}
}

func modeOf(name string) (fs.FileMode, error) {
	i, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return i.Mode(), nil
}

// Ask runs a command that only reads. It stops a command that prints too much.
func (r Runner) Ask(ctx context.Context, argv []string) ([]byte, error) {
	return r.AskWith(ctx, nil, argv)
}

// AskWith is Ask with more environment variables, "NAME=VALUE", which replace the common ones.
func (r Runner) AskWith(ctx context.Context, env, argv []string) ([]byte, error) {
	r.Env = slices.Concat(r.Env, env)
	r.kill = min(r.kill, askKill)
	ctx, stop := context.WithTimeoutCause(ctx, askLimit, host.OverLimit{Limit: askLimit})
	defer stop()
	return r.run(ctx, argv, nil, true)
}

// Do runs a command that changes something, with the run lock as descriptor 3 if it is held. Only
// the context limits its time, and output over the limit is dropped while the command continues:
// to kill a package manager at work is worse.
func (r Runner) Do(ctx context.Context, argv []string, lock *os.File) ([]byte, error) {
	return r.run(ctx, argv, lock, false)
}

// run runs a command; ask says that the command only reads.
func (r Runner) run(ctx context.Context, argv []string, inherit *os.File, ask bool) ([]byte, error) {
	if len(argv) == 0 {
		return nil, &host.CommandError{
			Argv:  []string{"nothing"},
			Code:  -1,
			Cause: fs.ErrInvalid,
		}
	}

	fail := func(err error) ([]byte, error) {
		return nil, &host.CommandError{Argv: argv, Code: -1, Cause: err}
	}
	binary, err := r.lookPath(argv[0])
	if err != nil {
		return fail(err)
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdout := head{max: r.max}
	if ask {
		stdout.full = func() { cancel(errTooMuch) }
	}
	var stderr Tail
	cmd := r.command(binary, argv)
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	if inherit != nil {
		cmd.ExtraFiles = []*os.File{inherit}
	}

	var p progress
	if r.Follow != nil && !ask {
		p.follow = r.Follow
		cmd.Stdout = io.MultiWriter(&stdout, &lineWriter{line: p.line})
	}
	closeSelf, err := r.withSelf(cmd)
	if err != nil {
		return fail(err)
	}
	defer closeSelf()
	closeStatus, err := p.withStatus(cmd)
	if err != nil {
		return fail(err)
	}
	defer closeStatus()

	err = r.wait(ctx, cmd)
	if errors.Is(err, errUnkillable) { // it may still write
		return fail(fmt.Errorf("%w, and it cannot be killed", context.Cause(ctx)))
	}
	if err == nil {
		return stdout.buf.Bytes(), nil
	}

	code, cause := ended(ctx, err)
	return stdout.buf.Bytes(), &host.CommandError{
		Argv:   argv,
		Code:   code,
		Stderr: mask.Message(stderr.String()), // it goes into errors, and from there anywhere
		Cause:  cause,
	}
}

// command is a program in a process group, or in a session, of its own.
func (r Runner) command(binary string, argv []string) *exec.Cmd {
	return &exec.Cmd{
		Path: binary,
		Args: argv,
		Env:  slices.Concat(Environment(), r.Env),
		Dir:  "/",
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid: r.Root == "",
			Setsid:  r.Root != "",
			Chroot:  r.Root,
		},
	}
}

// ended returns the exit code of a program that has failed, -1 if it has none, and why it failed.
func ended(ctx context.Context, err error) (code int, cause error) {
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	var exited *exec.ExitError
	if errors.As(err, &exited) && exited.Exited() {
		return exited.ExitCode(), err
	}
	return -1, err
}

// errUnkillable is the end of the wait for a command that SIGKILL does not end: a call of a driver
// or of a file system keeps it. Source: proc_pid_stat(5), state D.
var errUnkillable = errors.New("it cannot be killed")

// wait runs the command to its end, or to the context's: then it ends the whole group.
func (r Runner) wait(ctx context.Context, cmd *exec.Cmd) error {
	// A daemon that the command started may hold the pipes open for ever: after the command has
	// ended, gpuadm waits this long for them.
	cmd.WaitDelay = r.kill
	if err := r.Start(cmd); err != nil {
		return err
	}

	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		r.endGroup(cmd.Process.Pid)
		select {
		case err = <-ended:
		case <-time.After(r.kill):
			return errUnkillable
		}
	}

	if errors.Is(err, exec.ErrWaitDelay) { // exited with 0, only a pipe was still open
		err = nil
	}
	if err == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

// endGroup ends the process group of a process: with SIGTERM, then with SIGKILL if a part of
// it still runs.
func (r Runner) endGroup(leader int) {
	group := -leader
	_ = syscall.Kill(group, syscall.SIGTERM)
	deadline := time.Now().Add(r.kill)
	for time.Now().Before(deadline) {
		if syscall.Kill(group, 0) == syscall.ESRCH {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}

	_ = syscall.Kill(group, syscall.SIGKILL)
}

var errTooMuch = fmt.Errorf("its output is larger than %d MiB", maxOutput>>20)
