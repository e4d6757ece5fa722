package parts

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// Booted is what a real start of the daemon showed.
type Booted struct {
	// Up: the daemon said that it had booted.
	Up bool
	// CRI: the CRI plugin was loaded and did not fail.
	CRI bool
	// Log is all it said.
	Log string
}

// Boot starts the daemon for real on the config tree under root (see Lay),
// waits until it has booted or ended, and stops it. Its state lies beside the
// tree, and /etc, /opt, /run and /var/lib are empty for it, in a mount
// namespace of its own: the machine keeps no trace. Its network is its own too,
// since configurations name ports. That needs root and ip; without, the test is
// skipped.
func (p Part) Boot(t testing.TB, root string) Booted {
	t.Helper()
	if os.Getuid() != 0 {
		missing(t, "starting containerd needs root")
	}
	file := p.question(root, "boot")
	if a, ok := known(file); ok && a.Booted != nil {
		return *a.Booted
	}
	// The daemon dies with the thread that started it, so keep the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	state := t.TempDir()
	const hidden = `for dir in /etc /opt /run /var/lib; do mount -t tmpfs tmpfs $dir || exit 99; done; ip link set lo up || exit 99; exec "$@"`
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", hidden, "sh",
		p.Path, "--config", filepath.Join(root, "config.toml"), "--log-level", "info",
		"--root", filepath.Join(state, "root"), "--state", filepath.Join(state, "state"), "--address", filepath.Join(state, "sock"))
	cmd.Dir = "/" // as systemd runs it
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:    syscall.SIGKILL,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	read, write, err := os.Pipe()
	must.That(t, err == nil, "cannot make a pipe: %v", err)
	defer func() { _ = read.Close() }()
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		missing(t, "cannot start containerd in a mount namespace: "+err.Error())
	}
	var booted Booted
	var log strings.Builder
	lines := bufio.NewScanner(read)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.ReplaceAll(lines.Text(), root, etc)
		log.WriteString(line + "\n")
		if !booted.Up && strings.Contains(line, "containerd successfully booted") {
			booted.Up = true
			cancel()
		}
		if strings.Contains(line, criService) {
			switch {
			case strings.Contains(line, "failed to load plugin"):
				booted.CRI = false
			case strings.Contains(line, `msg="loading plugin`):
				booted.CRI = true
			}
		}
	}

	err = cmd.Wait()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 99 {
		missing(t, "cannot set up a namespace: "+log.String())
	}
	must.That(t, t.Context().Err() != nil || booted.Up || ctx.Err() == nil, "cannot boot containerd %s in %s: %v\n%s", p.Version, patience, err, log.String())
	booted.CRI = booted.CRI && booted.Up
	booted.Log = log.String()
	learn(file, answer{Booted: &booted})
	return booted
}
