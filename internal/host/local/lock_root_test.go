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

// lockedFolder is in the environment of a process that locks a root folder, says how that went, and ends with its input.
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

// TestLockFolder: a root folder has one lock, nothing of it lies in the folder, and nothing of it stays.
func TestLockFolder(t *testing.T) {
	dir := t.TempDir()
	one := must.Get(Open(dir))(t)
	link := filepath.Join(t.TempDir(), "link")
	must.OK(t, os.Symlink(dir, link))
	two := must.Get(Open(link))(t)
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
		_, err = os.Lstat(name)
		check.That(t, errors.Is(err, fs.ErrNotExist), "the lock left %s (%v)", name, err)
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
	name := must.Get(nameOfLock(must.Get(files.OpenRoot(dir))(t)))(t)
	return name
}

// TestOthersDoNotLock: another user who can read a root folder can lock the folder itself, and that keeps no run of gpuadm out.
func TestOthersDoNotLock(t *testing.T) {
	dir := t.TempDir()
	dirFile := must.Get(os.Open(dir))(t)
	defer dirFile.Close()
	must.OK(t, unix.Flock(int(dirFile.Fd()), unix.LOCK_EX))
	h := must.Get(Open(dir))(t)
	unlock := must.Get(h.Lock())(t)
	unlock()
}

// TestLockFileOfOthers: what another user has put where our lock lies is neither locked nor waited for, but named.
func TestLockFileOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a file of another user's")
	}
	dir := t.TempDir()
	h := must.Get(Open(dir))(t)
	name := lockOf(t, dir)
	link := func() error { return os.Symlink(filepath.Join(dir, "none"), name) }
	for what, put := range map[string]func() error{
		"locked": func() error { return os.WriteFile(name, nil, 0o666) },
		"a link": func() error { return errors.Join(link(), os.Lchown(name, swap.UID, swap.UID)) },
		"open":   func() error { return errors.Join(os.WriteFile(name, nil, 0), os.Chmod(name, 0o666)) },
		"two names": func() error {
			return errors.Join(os.WriteFile(name+".other", nil, 0o600), os.Link(name+".other", name))
		},
	} {
		t.Run(what, func(t *testing.T) {
			defer os.Remove(name)
			defer os.Remove(name + ".other")
			must.OK(t, put())
			user := 0
			switch what {
			case "locked":
				user = swap.UID
				f := must.Get(os.Open(name))(t)
				defer f.Close()
				must.OK(t, errors.Join(f.Chown(swap.UID, swap.UID), unix.Flock(int(f.Fd()), unix.LOCK_EX)))
			case "a link":
				user = swap.UID
			}
			want := fmt.Sprintf("cannot lock %s: user %d owns it, and it is not as gpuadm makes it: remove it", name, user)
			_, err := h.Lock()
			check.That(t, err != nil && err.Error() == want, "%v, want %s", err, want)
			_, err = os.Lstat(name)
			check.That(t, err == nil, "what is another user's was removed: %v", err)
		})
	}
	unlock := must.Get(h.Lock())(t)
	unlock()
}

// TestOneHasTheLock: no two runs hold a lock while its file comes and goes, whatever another run does between opening and locking.
func TestOneHasTheLock(t *testing.T) {
	name := lockOf(t, t.TempDir())
	for i := range 200 {
		one, two := &runLock{comes: true}, &runLock{comes: true}
		unlock, err := one.take(name)
		must.OK(t, err)
		var fds [2]int
		for i := range fds {
			if fds[i], err = files.OpenAt(unix.AT_FDCWD, name, unix.O_RDWR, 0); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fds[i])
		}
		waited := make(chan error)
		go func() { // gets the lock as soon as it is free: the file must be removed by then
			err := files.RetryEINTR(func() error { return unix.Flock(fds[0], unix.LOCK_EX) })
			var st unix.Stat_t
			if err == nil {
				err = unix.Fstat(fds[0], &st)
			}
			if err == nil && st.Nlink > 0 {
				err = errors.New("the lock's file is there still")
			}
			unix.Flock(fds[0], unix.LOCK_UN)
			waited <- err
		}()
		unlock()
		must.OK(t, <-waited)
		if i%2 == 1 { // another file with its name
			if unlock, err = two.take(name); err != nil {
				t.Fatal(err)
			}
		}
		err = one.lock(fds[1])
		must.That(t, err == errGone, "locked a file that no other run can find: %v", err)
		unlock()
	}
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
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: swap.UID, Gid: swap.UID}}
	}
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	said := must.Get(bufio.NewReader(out).ReadString('\n'))(t)
	return locker{cmd, in, strings.TrimSpace(said)}
}

// TestLockWithoutRoot: two runs of a user who is not root see each other, and what a killed one has left is taken over.
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
	left, err := filepath.Glob("/tmp/gpuadm-*" + strings.TrimPrefix(filepath.Base(lockOf(t, dir)), fmt.Sprintf("gpuadm-%d", os.Geteuid())))
	must.That(t, err == nil && len(left) == 1, "the killed process left %v (%v)", left, err)
	three := startLocker(t, dir)
	end(three)
	check.That(t, three.said == "<nil>", "%v", three.said)
	if _, err := os.Lstat(left[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock left %s (%v)", left[0], err)
	}
}
