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

// Result is how a command in the host ended.
type Result struct {
	Stdout, Stderr string
	// Exit is its exit code, or 128 and the number of the signal that killed it.
	Exit int
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
	cmd := h.inside(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := runInside(cmd)
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("cannot wait for %s: not done after %s\nstdout:\n%sstderr:\n%s", strings.Join(argv, " "), patience, &stdout, &stderr)
	}
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		return Result{}, fmt.Errorf("cannot run %s in the host: %w", strings.Join(argv, " "), err)
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
	r := h.ExecInput(strings.NewReader(text), "install", "-D", "-m", fmt.Sprintf("%o", mode.Perm()), "/dev/stdin", name)
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
	must.That(h.t, Until(patience, func() bool { return h.MainPID(unit) != pid }), "cannot kill the main process of %s: it is still %d", unit, pid)
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
	if leader := h.leader; leader > 1 { // 0 is all of our own process group
		_ = syscall.Kill(leader, syscall.SIGKILL)
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
// the time that it has waited: who asks a host runs two programs there, and a few who wait for
// minutes would keep a processor busy.
func Until(limit time.Duration, yes func() bool) bool {
	for began := time.Now(); !yes(); {
		waited := time.Since(began)
		if waited > limit {
			return false
		}
		time.Sleep(min(max(waited/8, 2*time.Millisecond), time.Second))
	}
	return true
}

// Container is a container that was started in a host.
type Container struct {
	h     *Host
	Name  string
	pid   string
	start string
}

// ContainerRun starts a container that stays until it is killed, by containerd and runc. Its image
// is made here.
func (h *Host) ContainerRun(name string) *Container {
	h.t.Helper()
	h.image.Do(func() {
		busybox, err := os.ReadFile(h.path("root") + "/bin/busybox")
		must.That(h.t, err == nil, "cannot read busybox: %v", err)
		image := must.Get(ociImage(imageName, busybox, nil, "/bin/sh"))(h.t)
		r := h.ExecInput(bytes.NewReader(image), "ctr", "-n", "lab", "images", "import", "-")
		must.That(h.t, r.Exit == 0, "cannot import the image: %s", r)
	})
	// PID 1 of a container ignores signals it has no handler for, and a host's reboot waits 90 s
	// for such a one.
	const untilTold = "trap exit TERM; while sleep 1; do :; done"
	h.Must("ctr", "-n", "lab", "run", "--detach", "--null-io", imageName, name, "/bin/sh", "-c", untilTold)
	c := &Container{h: h, Name: name}
	if c.pid = c.task(); c.pid == "" {
		h.t.Fatalf("cannot see the container %s: %s", name, h.Exec("ctr", "-n", "lab", "tasks", "list"))
	}
	c.start = c.started()
	return c
}

// Runs says whether the very process that was started still runs, and containerd knows it.
func (c *Container) Runs() bool {
	c.h.t.Helper()
	return c.task() == c.pid && c.started() == c.start && c.start != ""
}

// task is the process that containerd says runs the container; "" if none does.
func (c *Container) task() string {
	c.h.t.Helper()
	for line := range strings.Lines(c.h.Must("ctr", "-n", "lab", "tasks", "list")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == c.Name && f[2] == "RUNNING" {
			return f[1]
		}
	}
	return ""
}

// started is when the process started, in clock ticks since boot; "" if it is gone. Field 22:
// proc_pid_stat(5).
func (c *Container) started() string {
	c.h.t.Helper()
	r := c.h.Exec("cat", "/proc/"+c.pid+"/stat")
	_, after, _ := strings.Cut(r.Stdout, ") ")
	if f := strings.Fields(after); len(f) > 19 {
		return f[19]
	}
	return ""
}

// dockerDist is the distribution with a Docker that knows --validate and CDI: Debian 13's 26.1;
// Debian 12's 20.10 has neither.
const dockerDist = "trixie"

// dockerLayer has Docker and its client: of Options.Docker.
func dockerLayer() layer { return layer{"docker", "1", []string{"docker.io", "docker-cli"}, nil} }

// DockerRun starts a container that stays until it is killed, by Docker, and returns its process.
// Its image is made here.
func (h *Host) DockerRun(name string) (pid string) {
	h.t.Helper()
	h.image.Do(func() {
		h.Must("sh", "-c", "mkdir -p /run/image/bin && cp /bin/busybox /run/image/bin/sh && cp /bin/busybox /run/image/bin/sleep && "+
			"tar -C /run/image -c . | docker import - lab:local")
	})
	h.Must("docker", "run", "--detach", "--network=none", "--name", name, "lab:local", "/bin/sh", "-c", "trap exit TERM; while sleep 1; do :; done")
	return h.DockerProcess(name)
}

// DockerProcess is the process of a container that Docker says runs, "0" if it does not run.
func (h *Host) DockerProcess(name string) string {
	h.t.Helper()
	return strings.TrimSpace(h.Must("docker", "inspect", "--format", "{{.State.Pid}}", name))
}
