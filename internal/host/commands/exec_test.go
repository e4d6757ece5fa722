// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// small is a runner that takes little output.
func small() Runner {
	r := New()
	r.max = 1 << 20
	return r
}

// quick is a runner that soon loses its patience: its limit is for commands that ignore SIGTERM or
// leave a daemon behind. A busy machine may need longer than that for any other command.
func quick() Runner {
	r := small()
	r.kill = 300 * time.Millisecond
	return r
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func TestAsk(t *testing.T) {
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	t.Setenv("PATH", "/nowhere")
	t.Setenv("LD_PRELOAD", "/nowhere.so")
	t.Setenv("https_proxy", "http://proxy:3128")
	out, err := small().Ask(t.Context(), sh(`cat; echo "$LC_ALL $PATH $LD_PRELOAD $https_proxy"; pwd; echo talk >&2`))
	want := "C " + searchPath + "  http://proxy:3128\n/\n"
	check.That(t, err == nil && string(out) == want, "%q (%v), want %q", out, err, want)
}

func TestAskFails(t *testing.T) {
	for _, c := range []struct {
		argv []string
		code int
		want string
	}{
		{sh("echo out; echo one >&2; echo two >&2; exit 5"), 5, "cannot run sh: exit status 5: one; two"},
		{sh("kill -9 $$"), -1, "cannot run sh: signal: killed"},
		{[]string{"no-such-program"}, -1, "cannot run no-such-program: it is not installed: file does not exist"},
		{[]string{"/etc"}, -1, "cannot run /etc: fork/exec /etc: permission denied"},
		{nil, -1, "cannot run nothing: invalid argument"},
	} {
		_, err := small().Ask(t.Context(), c.argv)
		failed := (*host.CommandError)(nil)
		check.That(t, errors.As(err, &failed) && failed.Code == c.code && err.Error() == c.want, "%q: %v, want %s", c.argv, err, c.want)
	}

	_, err := small().Ask(t.Context(), []string{"no-such-program"})
	check.That(t, errors.Is(err, fs.ErrNotExist), "a missing program is not fs.ErrNotExist")
}

// TestLookPathSeesTheFolders: a program is not installed only if each folder could say so.
func TestLookPathSeesTheFolders(t *testing.T) {
	r := quick()
	r.Mode = func(name string) (fs.FileMode, error) {
		if strings.HasPrefix(name, "/usr/bin/") {
			return 0, &fs.PathError{Op: "stat", Path: name, Err: syscall.EIO}
		}
		return 0, fs.ErrNotExist
	}
	_, err := r.Ask(t.Context(), []string{"dpkg-query", "-W"})
	check.That(t, errors.Is(err, syscall.EIO) && !errors.Is(err, fs.ErrNotExist), "%v", err)
}

func TestStderrTail(t *testing.T) {
	_, err := small().Ask(t.Context(), sh("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done >&2; exit 1"))
	text := err.(*host.CommandError).Stderr
	check.That(t, len(text) <= maxStderr && strings.HasSuffix(text, "line 1999") && strings.HasPrefix(text, "line "), "%d bytes from %.20q", len(text), text)
}

func TestTooMuchOutput(t *testing.T) {
	if _, err := small().Ask(t.Context(), []string{"yes"}); !errors.Is(err, errTooMuch) {
		t.Errorf("ask: %v", err)
	}
	out, err := small().Do(t.Context(), sh("head -c 3000000 /dev/zero; echo end >&2"), nil)
	check.That(t, err == nil && len(out) == 1<<20, "do: %d bytes, %v", len(out), err)
}

// TestCancel ends a command that ignores SIGTERM, together with its children, and one that does
// not, with time to clean up.
func TestCancel(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	// cancelled ends the context once the command has made itself ready to be ended, and has said
	// so by a file of its own.
	cancelled := func(ready string) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for _, err := os.Stat(ready); err != nil && t.Context().Err() == nil; _, err = os.Stat(ready) {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		return ctx
	}

	name := func(s string) string { return filepath.Join(dir, s) }
	start := time.Now()
	_, err := quick().Do(cancelled(name("ready")), sh(`trap "" TERM; (trap "" TERM; >`+name("child")+`; sleep 60; sleep 60) & echo $! $$ >`+pids+`
		while ! [ -e `+name("child")+` ]; do sleep 0.01; done; >`+name("ready")+`; wait; sleep 60`), nil)
	took := time.Since(start)
	check.That(t, errors.Is(err, context.Canceled) && took >= quick().kill, "%v after %v", err, took)
	data, _ := os.ReadFile(pids)
	check.That(t, len(strings.Fields(string(data))) == 2, "processes %q", data)
	for _, field := range strings.Fields(string(data)) {
		pid, _ := strconv.Atoi(field)
		check.That(t, ends(t, pid), "process %d lives on", pid) // it was sent SIGKILL
	}

	patient := small()
	patient.kill = hang
	_, err = patient.Do(cancelled(name("waits")), sh(`trap "echo bye >`+pids+`; exit 0" TERM; >`+name("waits")+`; while :; do sleep 0.05; done`), nil)
	data, _ = os.ReadFile(pids)
	check.That(t, string(data) == "bye\n" && errors.Is(err, context.Canceled), "%q (%v)", data, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = small().Ask(ctx, sh("echo >"+pids+".never"))
	check.That(t, errors.Is(err, context.Canceled), "with a context that had ended: %v", err)
	_, err = os.Stat(pids + ".never")
	check.That(t, err != nil, "a command ran with a context that had ended")
}

// hang is longer than anything here takes on a busy machine.
const hang = 5 * time.Minute

// ends waits until a process has ended, and reports whether it did: pidfd_open(2).
func ends(t *testing.T, pid int) bool {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true
	}
	must.OK(t, err)
	defer unix.Close(fd)

	n, err := unix.Poll([]unix.PollFd{{
		Fd:     int32(fd),
		Events: unix.POLLIN,
	}}, int(hang.Milliseconds()))
	return n == 1 && err == nil
}

// alive says whether a process is more than a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !bytes.Contains(stat, []byte(") Z ")) && syscall.Kill(pid, 0) == nil
}

// TestDaemonKeepsPipe does not wait for ever for a daemon that a command left behind.
func TestDaemonKeepsPipe(t *testing.T) {
	r := small()
	r.kill = 2 * time.Second // as long as the output of a command that has ended may take
	out, err := r.Do(t.Context(), sh("setsid sleep "+strconv.Itoa(int(hang.Seconds()))+" & echo $!"), nil)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	check.That(t, err == nil && pid != 0 && alive(pid), "%q (%v)", out, err)
	syscall.Kill(pid, syscall.SIGKILL)
}

// A shell that a program starts runs this program by Self, also with other descriptors inherited.
func TestSelf(t *testing.T) {
	own := must.Get(os.Executable())(t)
	lock := must.Get(os.Open("/dev/null"))(t)
	defer lock.Close()
	for _, inherit := range []*os.File{nil, lock} {
		out, err := small().Do(t.Context(), sh("sh -c 'readlink "+host.Self+"'; true"), inherit)
		check.That(t, err == nil && strings.TrimSpace(string(out)) == own, "%q, %v, want %s", out, err, own)
	}
}

func TestInherits(t *testing.T) {
	lock := must.Get(os.Create(filepath.Join(t.TempDir(), "lock")))(t)
	defer lock.Close()
	look := sh("readlink /proc/$$/fd/*; true")
	out, err := small().Do(t.Context(), look, lock)
	check.That(t, err == nil && strings.Contains(string(out), "/lock\n"), "do: the command has %q (%v)", out, err)
	out, err = small().Ask(t.Context(), look)
	check.That(t, err == nil && !strings.Contains(string(out), "/lock\n"), "ask: the command has %q (%v)", out, err)
}

// TestFollow: who follows a command hears its lines when they are printed, progress bars too, how
// much is done, and no secret.
func TestFollow(t *testing.T) {
	var heard []string
	r := New()
	r.Follow = func(done, line string) {
		heard = append(heard, strings.Trim(done+"|"+line, "|"))
	}
	out, err := r.Do(t.Context(), []string{"printf", `one\n10%%\r20%%\r\n\npassword=hunter22hunter22\nno end`}, nil)
	check.That(t, err == nil && strings.HasSuffix(string(out), "no end"), "%q %v", out, err)
	check.List(t, heard, []string{"one", "10%", "20%", "password=(masked)"}, "heard")
	out, err = r.Ask(t.Context(), []string{"printf", `asked\n%s`, "fd " + host.StatusFd})
	check.That(t, err == nil && len(heard) == 4 && string(out) == "asked\nfd -1", "of a question: %q %q %v", out, heard, err)
	heard = nil
	_, err = r.Do(t.Context(), []string{"printf", `(3/12): a.rpm    1.2 MB/s | 3.4 MB     00:02    \n  Upgrading        : a-1-1.x86_64       2/18 \nBuilding for 5/6 of 7/8\n`}, nil) // as dnf prints them
	check.OK(t, err)
	check.List(t, heard, []string{"download 3/12|(3/12): a.rpm    1.2 MB/s | 3.4 MB     00:02", "dnf 2/18|Upgrading        : a-1-1.x86_64       2/18", "dnf 2/18|Building for 5/6 of 7/8"}, "of dnf")
}

// A command that SIGKILL does not end is left alone: nothing waits for it. Here gpuadm cannot end it
// because the command is in no process group of its own.
func TestUnkillable(t *testing.T) {
	r := quick()
	var pid int
	r.Start = func(cmd *exec.Cmd) error {
		cmd.SysProcAttr.Setpgid = false
		err := cmd.Start()
		pid = cmd.Process.Pid
		return err
	}

	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	out, err := r.Ask(ctx, []string{"sh", "-c", "echo begun; exec sleep 600"})
	must.OK(t, syscall.Kill(pid, syscall.SIGKILL))
	isCancelled := errors.Is(err, context.Canceled)
	check.That(t, isCancelled && strings.Contains(err.Error(), "cannot be killed"), "%v", err)
	check.That(t, out == nil, "%q", out)
}
