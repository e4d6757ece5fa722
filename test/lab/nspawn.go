// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// bootLimit ends a boot that hangs; a machine with many other things to do needs several seconds.
const bootLimit = 10 * time.Minute

// boot starts the host on its disk and waits until systemd has started all it wants.
func (m *Machine) boot(ctx context.Context) error {
	console, err := os.OpenFile(m.path("console"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("cannot open the console: %w", err)
	}
	defer func() { _ = console.Close() }()

	started := make(chan error)
	m.ended = make(chan struct{})
	go m.spawn(console, started, m.ended)
	if err := <-started; err != nil {
		return fmt.Errorf("cannot start systemd-nspawn: %w", err)
	}
	off := func() bool {
		select {
		case <-m.ended:
			return true
		default:
			return ctx.Err() != nil
		}
	}

	// systemd-nspawn's first child is a helper which ends, so look for a process that is PID 1 and
	// systemd.
	Until(bootLimit, func() bool {
		m.leader = m.findLeader()
		return m.leader != 0 || off()
	})
	if m.leader == 0 {
		return fmt.Errorf("cannot see the host's systemd: %s", parts.Last(m.Console(), 5))
	}

	var state string
	settled := Until(bootLimit, func() bool {
		state = m.systemState(ctx)
		return state == "running" || state == "degraded" || m.waits(ctx) || off()
	})
	if !settled || off() {
		return fmt.Errorf("systemd is %q, not running: %s", state, parts.Last(m.Console(), 5))
	}
	return nil
}

// systemState is what systemd says of the host. It waits for the end of the boot, unless a unit may
// still be starting when the host counts as booted.
func (m *Machine) systemState(ctx context.Context) string {
	ask := []string{"systemctl", "is-system-running"} // it exits with 1 while the host is not up
	if m.Options.Waits == "" {
		ask = append(ask, "--wait")
	}
	return m.outputOf(ctx, ask...)
}

// outputOf is what a command in the host writes, whatever its exit code.
func (m *Machine) outputOf(ctx context.Context, argv ...string) string {
	var out strings.Builder
	cmd := m.inside(ctx, argv...)
	cmd.Stdout = &out
	_ = runInside(cmd)
	return strings.TrimSpace(out.String())
}

// waits says whether all that the host's boot still does is to start the unit of Options.Waits.
func (m *Machine) waits(ctx context.Context) bool {
	if m.Options.Waits == "" {
		return false
	}

	var starting []string // units with a job that runs
	jobs := m.outputOf(ctx, "systemctl", "list-jobs", "--no-legend", "--plain")
	for line := range strings.Lines(jobs) {
		field := strings.Fields(line) // number, unit, type, state
		if len(field) == 4 && field[3] == "running" {
			starting = append(starting, field[1])
		}
	}

	return len(starting) == 1 && starting[0] == m.Options.Waits
}

// spawn runs systemd-nspawn from a thread of its own, which enters the host's cgroups to start it.
func (m *Machine) spawn(console *os.File, started chan<- error, ended chan<- struct{}) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	defer close(ended)

	cmd := m.nspawn()
	cmd.Stdout = console
	cmd.Stderr = console
	if m.groups.Unified != "" {
		group, err := os.Open(m.groups.Unified)
		if err != nil {
			started <- err
			return
		}
		defer func() { _ = group.Close() }()
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(group.Fd())
	}

	err := m.enterWire()
	if err == nil {
		err = m.groups.enter()
	}
	if err == nil {
		err = cmd.Start()
	}
	running := err == nil
	started <- errors.Join(err, m.groups.leave())
	if running {
		_ = cmd.Wait() // 133 after a reboot, 0 after a poweroff
	}
}

// nspawn is the command that boots the host.
func (m *Machine) nspawn() *exec.Cmd {
	cmd := exec.Command("systemd-nspawn", "--quiet", "--boot",
		"--directory="+m.path("root"),
		"--machine="+m.nspawnName(),
		"--hostname="+m.hostname(),
		"--register=no", "--keep-unit", // the lab's own cgroups, and no machined
		"--console=pipe", "--resolv-conf=off", "--link-journal=no",
		"--capability=all",
		"--bind="+m.path("state")+":/var/lib/containerd")
	cmd.Args = append(cmd.Args, m.spawnArgs()...)
	if m.Options.Repos != "" {
		cmd.Args = append(cmd.Args, "--bind-ro="+m.Options.Repos+":"+RepoDir)
	}

	unified := "1"
	if len(m.groups.First) > 0 {
		unified = "0"
	}
	cmd.Env = append(os.Environ(),
		"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="+unified,
		"SYSTEMD_NSPAWN_API_VFS_WRITABLE=1", // sysctls for containers
		"SYSTEMD_SECCOMP=0",                 // runc needs keyctl, bpf and others
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no Ctrl-C for it: the tests take it down
	return cmd
}

// findLeader finds the host's PID 1 among its processes; 0 if it has none.
func (m *Machine) findLeader() int {
	for _, pid := range m.groups.pids() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && isLeader(string(text)) {
			return pid
		}
	}
	return 0
}

// isLeader says whether a process is the systemd of a host, by its file status.
func isLeader(status string) bool {
	var name string
	var ids []string // its number in each PID namespace it is in, from the outermost: proc_pid_status(5)
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Name":
			name = strings.TrimSpace(value)
		case "NSpid":
			ids = strings.Fields(value)
		}
	}

	return name == "systemd" && len(ids) == 2 && ids[1] == "1"
}

// inside is a command in the host's namespaces. It is not in its cgroups, as a person's shell by
// nsenter is not.
func (m *Machine) inside(ctx context.Context, argv ...string) *exec.Cmd {
	args := []string{"-t", strconv.Itoa(m.leader), "-m", "-u", "-i", "-n", "-p", "-C", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		"USER=root",
		"LANG=C.UTF-8",
		"TERM=" + os.Getenv("TERM"),
	}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// runInside runs a command made by inside, and keeps its nsenter going: that stops itself when its
// child is stopped, as systemd-shutdown stops all before it ends them, and would then keep the dead
// child, and the host's PID 1 with it, from going away. Source: continue_as_child in
// sys-utils/nsenter.c of util-linux; systemd's src/shutdown/killall.c
func runInside(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	go keepGoing(cmd.Process, done)
	return cmd.Wait()
}

// keepGoing continues a process again and again until done.
func keepGoing(process *os.Process, done <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			_ = process.Signal(syscall.SIGCONT)
		}
	}
}

// Shell runs a shell in the host on this process's terminal.
func (m *Machine) Shell() error {
	if m.leader == 0 {
		return fmt.Errorf("cannot enter %s: it is off", m.Name)
	}
	cmd := m.inside(context.Background(), "bash", "-l")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	_ = runInside(cmd) // its exit code is that of the last thing typed
	return nil
}

// Console is what the host wrote to its console, at all its boots.
func (m *Machine) Console() string {
	text, _ := os.ReadFile(m.path("console"))
	return string(text)
}

// waitOff waits until the host's systemd-nspawn has ended.
func (m *Machine) waitOff(limit time.Duration) error {
	if m.ended == nil {
		return nil
	}
	select {
	case <-m.ended:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("cannot stop %s: it still runs after %s", m.Name, limit)
	}
}

// off ends all of the host's processes at once and empties its cgroups.
func (m *Machine) off() error {
	m.leader = 0
	if err := m.groups.kill(); err != nil {
		return err
	}
	if err := m.waitOff(time.Minute); err != nil {
		return err
	}
	m.ended = nil
	return m.groups.empty()
}
