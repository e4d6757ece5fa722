// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// Host is a booted host in a test: whatever goes wrong with the lab itself ends the test.
type Host struct {
	*Machine
	t testing.TB
}

// In is the host in a part of the test.
func (h *Host) In(t testing.TB) *Host { return &Host{Machine: h.Machine, t: t} }

// Result is how a command in the host ended.
type Result struct {
	Stdout string
	Stderr string
	Exit   int // its exit code, or 128 and the number of the signal that killed it
}

// String shows the whole result to people.
func (r Result) String() string {
	return fmt.Sprintf("exit %d\nstdout:\n%sstderr:\n%s", r.Exit, r.Stdout, r.Stderr)
}

// patience ends a command that hangs in a host. On a machine with much else to do, dkms and plays
// of Ansible need minutes.
const patience = 15 * time.Minute

// Exec runs a command in the host, as root, and waits for it.
func (h *Host) Exec(argv ...string) Result {
	h.t.Helper()
	return h.ExecInput(nil, argv...)
}

// ExecInput is Exec with a standard input.
func (h *Host) ExecInput(stdin io.Reader, argv ...string) Result {
	h.t.Helper()
	r := must.Get(h.try(stdin, argv...))(h.t)
	return r
}

// try is ExecInput for goroutines, which must not end the test.
func (h *Host) try(stdin io.Reader, argv ...string) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience) // not the test's: clean-ups use it too
	defer cancel()

	var stdout, stderr bytes.Buffer
	cmd := h.inside(ctx, argv...)
	cmd.Stdin = stdin
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	err := runInside(cmd)

	command := strings.Join(argv, " ")
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("cannot wait for %s: not done after %s\nstdout:\n%sstderr:\n%s", command, patience, &stdout, &stderr)
	}
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		return Result{}, fmt.Errorf("cannot run %s in the host: %w", command, err)
	}
	return Result{stdout.String(), stderr.String(), exitCode(cmd.ProcessState.Sys())}, nil
}

func exitCode(state any) int {
	status, _ := state.(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Must is Exec of a command that has to exit with 0; it returns its standard output.
func (h *Host) Must(argv ...string) string {
	h.t.Helper()
	r := h.Exec(argv...)
	must.That(h.t, r.Exit == 0, "%s in %s: %s", strings.Join(argv, " "), h.Options, r)
	return r.Stdout
}

// Put writes a file into the host, with its folders.
func (h *Host) Put(name, text string, mode os.FileMode) {
	h.t.Helper()
	permissions := fmt.Sprintf("%o", mode.Perm())
	r := h.ExecInput(strings.NewReader(text), "install", "-D", "-m", permissions, "/dev/stdin", name)
	must.That(h.t, r.Exit == 0, "cannot put %s: %s", name, r)
}

// Get reads a file of the host.
func (h *Host) Get(name string) string {
	h.t.Helper()
	return h.Must("cat", name)
}

// Journal is what a unit said since the host's last boot.
func (h *Host) Journal(unit string) string {
	h.t.Helper()
	h.Exec("journalctl", "--sync") // a unit is seen to have ended before journald has taken in its last words
	return h.Must("journalctl", "--boot", "--no-pager", "--unit", unit)
}

// Property asks systemd for a property of a unit.
func (h *Host) Property(unit, property string) string {
	h.t.Helper()
	return strings.TrimSpace(h.Must("systemctl", "show", "--value", "--property", property, unit))
}

// MainPID is the main process of a unit, in the host's numbers; 0 if it does not run.
func (h *Host) MainPID(unit string) int {
	h.t.Helper()
	pid, err := strconv.Atoi(h.Property(unit, "MainPID"))
	must.That(h.t, err == nil, "cannot read the main PID of %s: %v", unit, err)
	return pid
}

// KillMain kills a unit's main process with signal 9 and waits until systemd has seen it.
func (h *Host) KillMain(unit string) {
	h.t.Helper()
	pid := h.MainPID(unit)
	if pid == 0 { // that would kill the test itself
		h.t.Fatalf("cannot kill the main process of %s: it does not run", unit)
	}

	h.Must("kill", "-9", strconv.Itoa(pid))
	ended := Until(patience, func() bool { return h.MainPID(unit) != pid })
	must.That(h.t, ended, "cannot kill the main process of %s: it is still %d", unit, pid)
}

// KillInside kills with signal 9 all processes of the host with this command name, and returns how
// many there were. It waits until they are gone.
func (h *Host) KillInside(comm string) int {
	h.t.Helper()
	pids := strings.Fields(h.Exec("pgrep", "--exact", comm).Stdout)
	if len(pids) == 0 {
		return 0
	}
	h.Exec(append([]string{"kill", "-9"}, pids...)...) // one of them may have ended meanwhile
	ended := Until(patience, func() bool {
		return h.Exec("ps", "--no-headers", "-o", "pid", "-p", strings.Join(pids, ",")).Exit != 0
	})
	must.That(h.t, ended, "cannot kill %s: %v do not go", comm, pids)
	return len(pids)
}

// WaitFor waits until the host has a file.
func (h *Host) WaitFor(name string) {
	h.t.Helper()
	found := Until(patience, func() bool { return h.Exec("test", "-e", name).Exit == 0 })
	must.That(h.t, found, "cannot see %s: it does not come within %s", name, patience)
}

// BootID tells one boot from another.
func (h *Host) BootID() string {
	h.t.Helper()
	return strings.TrimSpace(h.Get("/proc/sys/kernel/random/boot_id"))
}

// Running says what systemd thinks of the host: "running", or "degraded" if a unit failed.
func (h *Host) Running() string {
	h.t.Helper()
	return strings.TrimSpace(h.Exec("systemctl", "is-system-running", "--wait").Stdout)
}

// Reboot reboots the host as its users do, and waits until it is up again. /run and /tmp are empty
// afterwards, and the boot ID is another.
func (h *Host) Reboot() {
	h.t.Helper()
	h.Exec("systemctl", "reboot") // it may end before nsenter does
	h.Rebooted()
}

// Rebooted waits until a host that a program on it reboots is up again.
func (h *Host) Rebooted() {
	h.t.Helper()
	must.OK(h.t, h.waitOff(bootLimit))
	h.again()
}

// Cut cuts the host's power and does not wait for anything: to be called while Touches runs.
// PowerLoss then brings the host up again.
func (h *Host) Cut() {
	if h.leader > 1 { // 0 is all of this process's own group
		_ = syscall.Kill(h.leader, syscall.SIGKILL)
	}
}

// PowerLoss ends all processes of the host at once, none of which sees it coming, and boots its
// disk again. The kernel lives on, and with it what was written but not synced to the disk: this
// shows what half-done work leaves behind, not a missing fsync. That is shown by the simulated node
// (test/sim/simhost): its disk forgets.
func (h *Host) PowerLoss() {
	h.t.Helper()
	h.again()
}

func (h *Host) again() {
	h.t.Helper()
	must.OK(h.t, h.off())
	err := h.boot(context.Background())
	must.That(h.t, err == nil, "cannot boot %s again: %v", h.Options, err)
}

// Until asks again and again until the answer is yes or the time is up. It pauses for an eighth of
// the time that it has waited: each question to a host runs two programs there, and some tests wait
// for minutes.
func Until(limit time.Duration, yes func() bool) bool {
	began := time.Now()
	for !yes() {
		waited := time.Since(began)
		if waited > limit {
			return false
		}
		pause := max(waited/8, 2*time.Millisecond)
		time.Sleep(min(pause, time.Second))
	}

	return true
}
