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
	if !Until(bootLimit, func() bool { m.leader = m.findLeader(); return m.leader != 0 || off() }) || m.leader == 0 {
		return fmt.Errorf("cannot see the host's systemd: %s", parts.Last(m.Console(), 5))
	}
	var state string
	settled := Until(bootLimit, func() bool {
		ask := []string{"systemctl", "is-system-running", "--wait"}
		if m.Options.Waits != "" {
			ask = ask[:2]
		}
		state = m.asked(ctx, ask...) // it exits with 1 while the host is not up
		return state == "running" || state == "degraded" || m.waits(ctx) || off()
	})
	if !settled || off() {
		return fmt.Errorf("systemd is %q, not running: %s", state, parts.Last(m.Console(), 5))
	}
	return nil
}

// asked is what a command in the host says, whatever its exit code.
func (m *Machine) asked(ctx context.Context, argv ...string) string {
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
	var at []string // units with a job that runs
	for line := range strings.Lines(m.asked(ctx, "systemctl", "list-jobs", "--no-legend", "--plain")) {
		if f := strings.Fields(line); len(f) == 4 && f[3] == "running" {
			at = append(at, f[1])
		}
	}
	return len(at) == 1 && at[0] == m.Options.Waits
}

// spawn runs systemd-nspawn from a thread of its own, which enters the host's cgroups to start it.
func (m *Machine) spawn(console *os.File, started chan<- error, ended chan<- struct{}) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	defer close(ended)
	version := "1"
	if len(m.groups.First) > 0 {
		version = "0"
	}
	cmd := exec.Command("systemd-nspawn", "--quiet", "--boot", "--directory="+m.path("root"), "--machine="+m.nspawnName(), "--hostname="+m.hostname(),
		// Our own cgroups, and no machined.
		"--register=no", "--keep-unit",
		"--console=pipe", "--resolv-conf=off", "--link-journal=no",
		"--capability=all", "--bind="+m.path("state")+":/var/lib/containerd")
	cmd.Args = append(cmd.Args, m.spawnArgs()...)
	if m.Options.Repos != "" {
		cmd.Args = append(cmd.Args, "--bind-ro="+m.Options.Repos+":"+RepoDir)
	}
	cmd.Env = append(os.Environ(),
		"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="+version,
		"SYSTEMD_NSPAWN_API_VFS_WRITABLE=1", // sysctls for containers
		"SYSTEMD_SECCOMP=0",                 // runc needs keyctl, bpf and others
	)
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no Ctrl-C for it: the tests take it down
	if m.groups.Unified != "" {
		group, err := os.Open(m.groups.Unified)
		if err != nil {
			started <- err
			return
		}
		defer func() { _ = group.Close() }()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
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

// findLeader finds the host's PID 1 among its processes; 0 if it is not there.
func (m *Machine) findLeader() int {
	for _, pid := range m.groups.pids() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		var name string
		var ids []string // its number in each PID namespace it is in, from ours inwards: proc_pid_status(5)
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			switch key {
			case "Name":
				name = strings.TrimSpace(value)
			case "NSpid":
				ids = strings.Fields(value)
			}
		}
		if name == "systemd" && len(ids) == 2 && ids[1] == "1" {
			return pid
		}
	}
	return 0
}

// inside is a command in the host's namespaces. It is not in its cgroups, as a person's shell by
// nsenter is not.
func (m *Machine) inside(ctx context.Context, argv ...string) *exec.Cmd {
	args := append([]string{"-t", strconv.Itoa(m.leader), "-m", "-u", "-i", "-n", "-p", "-C", "--"}, argv...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "LANG=C.UTF-8",
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
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_ = cmd.Process.Signal(syscall.SIGCONT)
			}
		}
	}()
	return cmd.Wait()
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
	if m.ended != nil {
		select {
		case <-m.ended:
		case <-time.After(limit):
			return fmt.Errorf("cannot stop %s: it still runs after %s", m.Name, limit)
		}
	}
	return nil
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
