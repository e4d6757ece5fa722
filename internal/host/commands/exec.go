// SPDX-License-Identifier: Apache-2.0

// Package commands runs the machine's programs, in an environment that is the same however gpuadm
// was called.
package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
)

const (
	askLimit   = 30 * time.Second // for a command that only looks
	killAfter  = 10 * time.Second // from SIGTERM to SIGKILL
	maxOutput  = 16 << 20         // bytes of standard output
	maxStderr  = 4 << 10          // bytes of standard error, the last ones
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Runner runs commands on the running machine, or in an image: argv as given, no shell, standard
// input empty, a process group of its own.
type Runner struct {
	kill  time.Duration                          // from SIGTERM to SIGKILL
	max   int                                    // bytes of standard output
	Start func(*exec.Cmd) error                  // where its programs run: in an image that is its own root folder
	Mode  func(name string) (fs.FileMode, error) // of a program's file
	Env   []string                               // added to the common environment
	Self  string                                 // this program's file, for programs; "" has them inherit it, open
	Root  string                                 // the programs' root folder, without the caller's terminal; "" for this process's own
}

func New() Runner {
	return Runner{kill: killAfter, max: maxOutput, Start: (*exec.Cmd).Start, Mode: modeOf}
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
	ctx, stop := context.WithTimeoutCause(ctx, askLimit, host.OverLimit{Limit: askLimit})
	defer stop()
	return r.run(ctx, argv, nil, true)
}

// Do runs a command that changes something, with the run lock as descriptor 3 if it is held. There
// is no limit but the context's, and output over the limit is dropped while the command goes on:
// killing a package manager in the middle is worse.
func (r Runner) Do(ctx context.Context, argv []string, lock *os.File) ([]byte, error) {
	return r.run(ctx, argv, lock, false)
}

func (r Runner) run(ctx context.Context, argv []string, inherit *os.File, strict bool) ([]byte, error) {
	if len(argv) == 0 {
		return nil, &host.CommandError{Argv: []string{"nothing"}, Code: -1, Cause: fs.ErrInvalid}
	}

	failed := &host.CommandError{Argv: argv, Code: -1}
	binary, err := r.lookPath(argv[0])
	if err != nil {
		failed.Cause = err
		return nil, failed
	}
	if ctx.Err() != nil {
		failed.Cause = context.Cause(ctx)
		return nil, failed
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var stdout head
	var stderr Tail
	stdout.max = r.max
	if strict {
		stdout.full = func() { cancel(errTooMuch) }
	}
	cmd := exec.Cmd{
		Path:        binary,
		Args:        argv,
		Env:         slices.Concat(Environment(), r.Env, envOf(ctx)),
		Dir:         "/",
		Stdout:      &stdout,
		Stderr:      &stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: r.Root == "", Setsid: r.Root != "", Chroot: r.Root},
	}
	if inherit != nil {
		cmd.ExtraFiles = []*os.File{inherit}
	}
	var p progress
	if told, _ := ctx.Value(follower{}).(func(done, line string)); told != nil && !strict {
		p.told, cmd.Stdout = told, io.MultiWriter(&stdout, &lines{told: p.heard})
	}
	for _, with := range []func(*exec.Cmd) (func(), error){r.withSelf, p.withStatus} {
		done, err := with(&cmd)
		if err != nil {
			failed.Cause = err
			return nil, failed
		}
		defer done()
	}
	err = r.wait(ctx, &cmd)
	failed.Stderr = mask.Message(stderr.String()) // it goes into errors, and from there anywhere
	switch exited := (*exec.ExitError)(nil); {
	case ctx.Err() != nil && err != nil:
		failed.Cause = context.Cause(ctx)
	case errors.As(err, &exited) && exited.Exited():
		failed.Code, failed.Cause = exited.ExitCode(), err
	case err != nil:
		failed.Cause = err
	default:
		return stdout.buf.Bytes(), nil
	}

	return stdout.buf.Bytes(), failed
}

// wait runs the command to its end, or to the context's: then the whole group gets SIGTERM, and
// SIGKILL if any of it lives on.
func (r Runner) wait(ctx context.Context, cmd *exec.Cmd) error {
	// A daemon that the command started may hold the pipes open for ever: after the command has
	// ended, gpuadm waits this long for them.
	cmd.WaitDelay = r.kill
	if err := r.Start(cmd); err != nil {
		return err
	}

	group := -cmd.Process.Pid
	ended, swept := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swept)
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		syscall.Kill(group, syscall.SIGTERM)
		for end := time.Now().Add(r.kill); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if syscall.Kill(group, 0) == syscall.ESRCH {
				return
			}
		}
		syscall.Kill(group, syscall.SIGKILL)
	}()
	err := cmd.Wait()
	close(ended)
	<-swept
	if errors.Is(err, exec.ErrWaitDelay) { // exited with 0, only a pipe was still open
		err = nil
	}
	if err == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

var errTooMuch = fmt.Errorf("it says more than %d MiB", maxOutput>>20)

// Environment is the same however gpuadm was called: over SSH, by a unit, in a pod. Only the way to
// the network is passed on.
func Environment() []string {
	env := []string{
		"PATH=" + searchPath,
		"LC_ALL=C",                       // messages and numbers as programs expect them
		"HOME=/root",                     // gpg, helm and others fail without one
		"DEBIAN_FRONTEND=noninteractive", // debconf must not ask: debconf(7)
	}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// lookPath finds a program on gpuadm's own search path, not on the caller's.
func (r Runner) lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}

	for _, dir := range strings.Split(searchPath, ":") {
		file := filepath.Join(dir, name)
		if mode, err := r.Mode(file); err == nil && mode.IsRegular() && mode&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("it is not installed: %w", fs.ErrNotExist)
}

// head keeps the first bytes written to it and reports once when there are more.
type head struct {
	buf  bytes.Buffer
	max  int
	full func()
}

func (h *head) Write(p []byte) (int, error) {
	keep := min(len(p), h.max-h.buf.Len())
	h.buf.Write(p[:keep])
	if keep < len(p) && h.full != nil {
		h.full()
		h.full = nil
	}
	return len(p), nil
}

// Tail keeps the last whole lines written to it, as far as they fit.
type Tail struct {
	buf []byte
	cut bool
}

func (t *Tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - maxStderr; over > 0 {
		t.buf, t.cut = append(t.buf[:0], t.buf[over:]...), true
	}
	return len(p), nil
}

func (t *Tail) String() string {
	text := t.buf
	if nl := bytes.IndexByte(text, '\n'); t.cut && nl >= 0 && nl < len(text)-1 {
		text = text[nl+1:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(text), "?"))
}

type variables struct{}

// WithEnv gives the commands that run under a context more environment variables, "NAME=VALUE",
// over the common ones: what a kubeconfig gives its exec plugin may be a secret, and an argv
// everybody can read.
func WithEnv(ctx context.Context, env ...string) context.Context {
	return context.WithValue(ctx, variables{}, env)
}

// envOf returns what WithEnv gave.
func envOf(ctx context.Context) []string {
	env, _ := ctx.Value(variables{}).([]string)
	return env
}

// withSelf has a program hand on this gpuadm's own file, open: its name may lie where others can
// write, or be another program's by now. PPID is who started the shell, and has the file as long as
// it waits for that.
func (r Runner) withSelf(cmd *exec.Cmd) (done func(), err error) {
	if r.Self != "" || !names(cmd, host.Self) {
		replace(cmd, host.Self, r.Self)
		return func() {}, nil
	}

	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("cannot open this program's own file: %w", err)
	}

	cmd.ExtraFiles = append(cmd.ExtraFiles, self)
	replace(cmd, host.Self, fmt.Sprintf("/proc/$PPID/fd/%d", 2+len(cmd.ExtraFiles)))
	return func() { self.Close() }, nil
}

// names says whether an argument has a placeholder; replace replaces it.
func names(cmd *exec.Cmd, placeholder string) bool {
	return slices.ContainsFunc(cmd.Args, func(a string) bool { return strings.Contains(a, placeholder) })
}

func replace(cmd *exec.Cmd, placeholder, by string) {
	cmd.Args = slices.Clone(cmd.Args) // they are the caller's
	for i, a := range cmd.Args {
		cmd.Args[i] = strings.ReplaceAll(a, placeholder, by)
	}
}

// reexeced is in the environment of a process that Reexec has started.
const reexeced = "GPUADM_REEXECED"

// Reexec replaces this process by a new one with the same program, arguments, more, and
// environment. It returns only if it cannot. A process that Reexec has started does not do it a
// second time: then it returns nil. It takes the program from /proc/self/exe, since an installation
// may have replaced the file meanwhile. The run lock must be free.
func Reexec(more ...string) error {
	if os.Getenv(reexeced) != "" {
		return nil
	}
	if err := syscall.Exec("/proc/self/exe", with(os.Args, more), append(os.Environ(), reexeced+"=1")); err != nil {
		return fmt.Errorf("cannot re-execute gpuadm: %w", err)
	}
	return nil
}

// with adds flags to arguments, behind the ones they override, and before a "--" that ends flags.
func with(argv, more []string) []string {
	end := slices.Index(argv, "--")
	if end < 0 {
		end = len(argv)
	}
	return slices.Insert(slices.Clone(argv), end, more...)
}

// Confined lists what keeps this process from what root may do: capabilities it lacks, a seccomp
// filter, a security module's profile, a mount namespace of its own. The kernel answers only
// "operation not permitted" or "read-only file system" for all of them. The list is empty for a
// process that may do all.
func Confined() []string {
	status, _ := os.ReadFile("/proc/self/status")
	label, _ := os.ReadFile("/proc/self/attr/current")
	last, _ := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	own, _ := os.Readlink("/proc/self/ns/mnt")
	initial, _ := os.Readlink("/proc/1/ns/mnt") // "" without CAP_SYS_PTRACE: nothing is known then
	return confined(string(status), string(label), string(last), own, initial)
}

func confined(status, label, last, own, initial string) (all []string) {
	has, err := strconv.ParseUint(field(status, "CapEff"), 16, 64)
	bit, err2 := strconv.Atoi(strings.TrimSpace(last))
	if err == nil && err2 == nil && bits.OnesCount64(has) <= bit {
		all = append(all, fmt.Sprintf("this process lacks capabilities: capsh --decode=%x names those that its unit's CapabilityBoundingSet=, or its container, leaves it", has))
	}
	if field(status, "Seccomp") == "2" {
		all = append(all, "a seccomp filter forbids this process some system calls (SystemCallFilter= and the like in its unit, or a container's profile)")
	}
	if own != "" && initial != "" && own != initial {
		all = append(all, "this process has its own mount namespace, where parts may be read-only (ProtectSystem= or ReadOnlyPaths= in its unit)")
	}
	// AppArmor's for no profile; SELinux's unconfined_t of a shell, unconfined_service_t of a unit.
	// Without such a module there is no label.
	if l := strings.Trim(label, "\x00\n "); l != "" && l != "unconfined" && !strings.Contains(l, ":unconfined_t:") && !strings.Contains(l, ":unconfined_service_t:") {
		all = append(all, fmt.Sprintf("a security module runs this process as %q (ausearch -m avc, or dmesg, says what it forbade)", l))
	}

	return all
}

// field is a line's value in a file like /proc/self/status: proc_pid_status(5).
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
