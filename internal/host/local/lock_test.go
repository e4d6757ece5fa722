// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/swap"
)

// TestMain lets this binary be the other process of TestLock: it takes the lock and runs a command.
func TestMain(m *testing.M) {
	leaveMounts()
	swap.Child()
	lockChild()
	if len(os.Args) == 2 && os.Args[1] == FirstVerb {
		if os.Getenv(noFirst) != "" {
			fmt.Fprintln(os.Stderr, noFirst)
			os.Exit(1)
		}
		if First(os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}

	path := os.Getenv("GPUADM_TEST_LOCK")
	if path == "" {
		os.Exit(m.Run())
	}
	lock := runLock{}
	if _, err := lock.take(path); err != nil {
		panic(err)
	}
	commands.New().Do(context.Background(), []string{"sh", "-c", "echo >" + path + ".started; exec sleep 601.5"}, lock.file())
}

// leaveMounts moves the tests into a mount namespace of their own, where they may have one. Some
// compare what is mounted before and after, and other programs of this machine, such as a lab, mount
// meanwhile.
func leaveMounts() {
	const done = "GPUADM_TEST_MOUNTS"
	if os.Geteuid() != 0 || os.Getenv(done) != "" {
		return
	}

	// A namespace is a thread's. The thread that calls exec becomes the whole process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Unshare(unix.CLONE_NEWNS) != nil {
		return
	}
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""), // as systemd leaves it
		os.Setenv(done, "1"),
		syscall.Exec("/proc/self/exe", os.Args, os.Environ()),
	)
	panic(fmt.Sprintf("cannot enter a mount namespace for the tests: %v", err))
}

// hang is longer than anything here takes on a busy machine.
const hang = 5 * time.Minute

// TestLock: a second process is refused and told who is at work; when the first is killed its child
// still holds the lock.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	helper := exec.Command(os.Args[0], "the-helper")
	helper.Env = append(os.Environ(), "GPUADM_TEST_LOCK="+path)
	must.OK(t, helper.Start())
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path + ".started"); err == nil {
			break
		}
	}

	var mine runLock
	refused := func(want func(*host.Busy) bool) *host.Busy {
		t.Helper()
		var busy *host.Busy
		for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			unlock, err := mine.take(path)
			if err == nil {
				unlock()
				t.Fatal("the lock was given twice")
			}
			must.That(t, errors.As(err, &busy), "%v", err)
			if want(busy) {
				return busy
			}
		}

		t.Fatalf("busy says %v", busy)
		return nil
	}

	refused(func(b *host.Busy) bool {
		return b.PID == helper.Process.Pid && !b.Orphan && strings.Contains(b.Error(), "the-helper")
	})
	helper.Process.Kill()
	helper.Wait()
	child := refused(func(b *host.Busy) bool { return b.Command == "sleep 601.5" })
	check.That(t, strings.HasPrefix(child.Error(), "a command of a killed gpuadm run is still at work: process "), "%v", child)
	syscall.Kill(child.PID, syscall.SIGKILL)
	for end := time.Now().Add(hang); ; time.Sleep(20 * time.Millisecond) {
		unlock, err := mine.take(path)
		if err == nil {
			unlock()
			return
		}
		must.That(t, !time.Now().After(end), "the lock of the dead is not free: %v", err)
	}
}

// TestOrphaned: a run that was killed is told from one that works, also in a container, where the kernel
// has no number for a process that is gone.
func TestOrphaned(t *testing.T) {
	for _, x := range []struct {
		name    string
		taker   int
		holders []int
		gpuadm  int
		want    bool
	}{
		{"gpuadm and its apt-get", 100, []int{100, 120}, 100, false},
		{"apt-get of a killed gpuadm", 100, []int{120}, 0, true},
		{"gpuadm of another namespace", 0, []int{100, 120}, 100, false},
		{"apt-get of a killed gpuadm in a container", 0, []int{120, 121}, 0, true},
	} {
		is := func(pid int) bool { return pid == x.gpuadm }
		check.Equal(t, isOrphaned(x.taker, x.holders, is), x.want, "%s:", x.name)
	}
}

func TestLockInOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var one, two runLock
	unlock, err := one.take(path)
	must.OK(t, err)
	if i, err := os.Stat(path); err != nil || i.Mode() != 0o600 {
		t.Errorf("%v (%v)", i.Mode(), err)
	}
	for _, lock := range []*runLock{&one, &two} {
		_, err := lock.take(path)
		busy := (*host.Busy)(nil)
		check.That(t, errors.As(err, &busy) && busy.PID == os.Getpid(), "taken twice: %v", err)
	}

	unlock()
	unlock() // once more does nothing
	unlock, err = two.take(path)
	must.OK(t, err)
	unlock()
}

// TestUnlockReleasesChildren: what a run left in the background does not keep the next one out.
func TestUnlockReleasesChildren(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var one, two runLock
	unlock, err := one.take(path)
	must.OK(t, err)
	out, err := commands.New().Do(t.Context(), []string{"sh", "-c", "setsid sleep 30 >/dev/null 2>&1 & echo $!"}, one.file())
	must.OK(t, err)
	defer exec.Command("kill", strings.TrimSpace(string(out))).Run()
	unlock()
	unlock, err = two.take(path)
	must.OK(t, err)
	unlock()
}
