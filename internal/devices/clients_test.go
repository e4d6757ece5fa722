// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// holds says to the test's own binary what it opens before it waits: as a process beside gpuadm
// does.
const holds = "GPUADM_TEST_HOLDS"

func TestMain(m *testing.M) {
	if what := os.Getenv(holds); what != "" {
		if err := hold(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}

	os.Exit(m.Run())
}

// hold opens what the parent asks for, says so, and waits until the parent closes its standard
// input.
func hold(what string) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	name, count, _ := strings.Cut(what, "*")
	files, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	flags := unix.O_RDONLY
	if name == "/dev/nvidia" {
		// What a tenant may do: a /dev of its own, with regular files in it.
		if err := unix.Mount("tmpfs", "/dev", "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("cannot mount a /dev: %w", err)
		}
		flags |= unix.O_CREAT
	}

	for i := range files {
		path := name
		if name == "/dev/nvidia" {
			path += strconv.Itoa(i)
		}
		if _, err := unix.Open(path, flags, 0o600); err != nil {
			return fmt.Errorf("cannot open %s: %w", path, err)
		}
	}

	fmt.Println("ready")
	_, err = os.Stdin.Read(make([]byte, 1))
	if err.Error() != "EOF" {
		return err
	}
	return nil
}

// start starts such a process, by no user's right and in namespaces of its own, and returns its
// number.
func start(t *testing.T, what string) int {
	t.Helper()
	if os.Geteuid() != 0 {
		must.That(t, os.Getenv("CI") != "true", "only root sees what processes of others have open")
		t.Skip("only root sees what processes of others have open")
	}
	// What started the test may have left it files open, /dev/null among them.
	must.OK(t, unix.CloseRange(3, 1<<20, unix.CLOSE_RANGE_CLOEXEC))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{holds + "=" + what}
	var stderr strings.Builder // not the test's own, which may be /dev/null
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{
			ContainerID: 0,
			HostID:      65534,
			Size:        1,
		}},
		GidMappings: []syscall.SysProcIDMap{{
			ContainerID: 0,
			HostID:      65534,
			Size:        1,
		}},
		Credential: &syscall.Credential{NoSetGroups: true},
	}
	stdin := must.Get(cmd.StdinPipe())(t)
	stdout := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	must.That(t, line == "ready\n", "the other process is not ready: %q, %v, %s", line, err, &stderr)
	return cmd.Process.Pid
}

// among is this machine with some of its processes, and with other drivers in /proc/devices: a test
// cannot make device nodes of NVIDIA's, so it gives their name to the major number of /dev/null.
type among struct {
	host.View
	pids  []int
	calls int // how often the machine was asked for anything
}

func (a *among) ReadDir(name string) ([]string, error) {
	a.calls++
	if name != "/proc" {
		return a.View.ReadDir(name)
	}
	names := []string{"self", "sys"}
	for _, pid := range a.pids {
		names = append(names, strconv.Itoa(pid))
	}
	return names, nil
}

func (a *among) Readlink(name string) (string, error) {
	a.calls++
	return a.View.Readlink(name)
}

func (a *among) ReadFile(name string) ([]byte, error) {
	a.calls++
	if name == "/proc/devices" {
		return []byte("Character devices:\n  1 nvidia-frontend\n  5 /dev/tty\n510 nvidia-uvm\n\nBlock devices:\n  7 nvidia\n"), nil
	}
	return a.View.ReadFile(name)
}

func live(t *testing.T, pids ...int) *among {
	t.Helper()
	h := must.Get(local.Open("/"))(t)
	return &among{View: h, pids: pids}
}

// TestFileIsNoGPU: what an unprivileged process names /dev/nvidia0 in a namespace of its own holds
// no GPU, and a device of the driver's does, whatever its name.
func TestFileIsNoGPU(t *testing.T) {
	tenant, client := start(t, "/dev/nvidia*2"), start(t, "/dev/null*2")
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tenant, 3))
	for fd := 4; err == nil && link != "/dev/nvidia0"; fd++ {
		link, err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tenant, fd))
	}
	must.That(t, err == nil, "the tenant's file does not pass for /dev/nvidia0: %v", err)
	holders, err := devices.Holders(t.Context(), live(t, tenant, client))
	check.That(t, err == nil && len(holders) == 1 && holders[0].PID == client && len(holders[0].Files) == 1, "tenant %d, client %d: %v, %v", tenant, client, holders, err)
	clients, err := devices.Clients(t.Context(), live(t, tenant, client))
	check.That(t, err == nil && len(clients) == 1, "%q, %v", clients, err)
}

// TestManyOpenFiles: what 16,000 open files cost grows as their number does, and what is said of
// them is short.
func TestManyOpenFiles(t *testing.T) {
	cost := func(what string) (bytes uint64, calls int) {
		v := live(t, start(t, what))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		clients, err := devices.Clients(t.Context(), v)
		runtime.ReadMemStats(&after)
		said := strings.Join(clients, "\n")
		check.That(t, err == nil && len(said) <= 1024, "%s: %d bytes are said of it, %v", what, len(said), err)
		return after.TotalAlloc - before.TotalAlloc, v.calls
	}

	few, fewCalls := cost("/dev/nvidia*1000")
	many, manyCalls := cost("/dev/nvidia*16000")
	if many > 4*16*few || // lists grow by doubling; what is quadratic takes 256 times as much
		manyCalls > fewCalls*16 {
		t.Errorf("1,000 files take %d bytes and %d calls, 16,000 take %d and %d", few, fewCalls, many, manyCalls)
	}
	same := live(t, start(t, "/dev/null*15000"))
	clients, err := devices.Clients(t.Context(), same)
	check.That(t, err == nil && len(clients) == 1 && len(clients[0]) <= 100, "%q, %v", clients, err)
}

// TestProcessesComeAndGo: a process that has ended, and one that its parent has not waited for, are
// no error.
func TestProcessesComeAndGo(t *testing.T) {
	ended := exec.Command("true")
	must.OK(t, ended.Start())
	var info unix.Siginfo
	must.OK(t, unix.Waitid(unix.P_PID, ended.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil))
	zombie := ended.Process.Pid
	holders, err := devices.Holders(t.Context(), live(t, zombie, 1<<22))
	check.That(t, err == nil && len(holders) == 0, "a zombie: %v, %v", holders, err)
	_ = ended.Wait()
	holders, err = devices.Holders(t.Context(), live(t, zombie))
	check.That(t, err == nil && len(holders) == 0, "an ended process: %v, %v", holders, err)
}
