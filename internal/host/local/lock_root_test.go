// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/swap"
)

// lockedFolder is in the environment of a process that locks a root folder, says how that went, and
// ends with its input.
const lockedFolder = "GPUADM_TEST_LOCK_FOLDER"

// lockChild is that process if this one was started for it.
func lockChild() {
	dir := os.Getenv(lockedFolder)
	if dir == "" {
		return
	}
	h, err := Open(dir)
	if err != nil {
		panic(err)
	}
	unlock, err := h.Lock()
	fmt.Println(err)
	if err == nil {
		io.Copy(io.Discard, os.Stdin)
		unlock()
	}
	os.Exit(0)
}

// TestLockFolder: a root folder has one lock, and nothing of it lies in the folder.
func TestLockFolder(t *testing.T) {
	dir := t.TempDir()
	one := must.Get(Open(dir))(t)
	two := must.Get(Open(dir + "/."))(t)
	for range 2 {
		unlock := must.Get(one.Lock())(t)
		for _, h := range []host.Host{one, two} {
			_, err := h.Lock()
			busy := (*host.Busy)(nil)
			check.That(t, errors.As(err, &busy) && busy.PID == os.Getpid(), "locked twice: %v", err)
		}

		name := lockOf(t, dir)
		i, err := os.Stat(name)
		check.That(t, err == nil && i.Mode() == 0o600 && i.Size() == 0, "%s: %v (%v)", name, i, err)
		unlock()
		unlock() // once more does nothing
		one, two = two, one
	}

	names, _ := os.ReadDir(dir)
	check.That(t, len(names) == 0, "the lock left %v in the image", names)
	_, err := Open(filepath.Join(dir, "none"))
	check.That(t, errors.Is(err, fs.ErrNotExist), "opened what is not there: %v", err)
}

// lockOf is the name of a root folder's lock.
func lockOf(t *testing.T, dir string) string {
	t.Helper()
	name := must.Get(lockFileOf(must.Get(files.OpenRoot(dir))(t)))(t)
	return name
}

// TestOthersDoNotLock: another user who can read a root folder can lock the folder itself, and that
// keeps no run of gpuadm out.
func TestOthersDoNotLock(t *testing.T) {
	dir := t.TempDir()
	dirFile := must.Get(os.Open(dir))(t)
	defer dirFile.Close()
	must.OK(t, unix.Flock(int(dirFile.Fd()), unix.LOCK_EX))
	h := must.Get(Open(dir))(t)
	unlock := must.Get(h.Lock())(t)
	unlock()
}

// locker is a process without rights that locks a root folder.
type locker struct {
	*exec.Cmd
	in   io.Closer
	said string
}

func startLocker(t *testing.T, dir string) locker {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "the-locker")
	cmd.Env = append(os.Environ(), lockedFolder+"="+dir)
	cmd.Stderr = os.Stderr
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
			Uid: swap.UID,
			Gid: swap.UID,
		}}
	}

	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	said := must.Get(bufio.NewReader(out).ReadString('\n'))(t)
	return locker{cmd, in, strings.TrimSpace(said)}
}

// TestLockWithoutRoot: two runs of a user who is not root see each other, and what a killed one has
// locked is free.
func TestLockWithoutRoot(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.Chmod(filepath.Dir(dir), 0o755))
	end := func(l locker) {
		t.Helper()
		l.in.Close()
		check.OK(t, l.Wait())
	}

	one := startLocker(t, dir)
	two := startLocker(t, dir)
	end(two)
	want := fmt.Sprintf("process %d (/proc/self/exe the-locker)", one.Process.Pid)
	check.That(t, one.said == "<nil>" && strings.Contains(two.said, want), "the first says %s, the second %s, want %s", one.said, two.said, want)
	one.Process.Kill()
	one.Wait()
	three := startLocker(t, dir)
	end(three)
	check.That(t, three.said == "<nil>", "%v", three.said)
}
