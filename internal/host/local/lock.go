// SPDX-License-Identifier: Apache-2.0

package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"golang.org/x/sys/unix"
)

// lockFile is the run lock of the running machine. It lies in a tmpfs and is never removed, as
// those of root folders: a lock file that comes and goes can be locked by two.
const lockFile = "/run/gpuadm.lock"

// runLock is the machine's one run lock, flock(2) on an open file. The lock belongs to the open
// file, not to the process: children that inherit the descriptor hold it on when gpuadm is killed.
type runLock struct {
	mu   sync.Mutex
	held *os.File
}

// lockFileOf returns the name of a root folder's lock file. The folder itself is not locked, since
// any user who can read it could then keep gpuadm out; and a lock file in an image would stay
// there. So the file is named after the folder, as systemd-nspawn's is
// (/run/systemd/nspawn/locks/inode-DEV:INO: image_path_lock in src/shared/machine-image.c,
// discover-image.c since 248). It is in /run, or in /tmp for a user who may not write there. It
// does not keep out a run of another user, or in a container with its own /run.
func lockFileOf(root files.RealDisk) (string, error) {
	var st unix.Stat_t
	if err := files.RetryEINTR(func() error { return unix.Fstat(int(root), &st) }); err != nil {
		return "", err
	}
	folder := "/run"
	if unix.Access(folder, unix.W_OK|unix.X_OK) != nil {
		folder = "/tmp"
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	return fmt.Sprintf("%s/gpuadm-%d-%s-%d.lock", folder, unix.Geteuid(), device, st.Ino), nil
}

// take takes the lock or fails with *Busy. Its descriptor is close-on-exec: only a command that is
// given file() inherits it.
func (l *runLock) take(path string) (unlock func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		return nil, &host.Busy{PID: os.Getpid(), Command: command(os.Getpid())}
	}

	fd, err := files.OpenAt(unix.AT_FDCWD, path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, host.Failed("lock", path, err)
	}

	err = files.RetryEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		defer unix.Close(fd)
		if err == unix.EWOULDBLOCK {
			return nil, holder(fd)
		}
		return nil, host.Failed("lock", path, err)
	}

	l.held = os.NewFile(uintptr(fd), path)
	return sync.OnceFunc(l.release), nil
}

// release frees the lock for all processes that inherited it: after a run that ended normally, what
// a package left running in the background must not keep the next run out. Only a killed run leaves
// its children holding it.
func (l *runLock) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	unix.Flock(int(l.held.Fd()), unix.LOCK_UN)
	l.held.Close()
	l.held = nil
}

// file is the held lock, nil if it is not held.
func (l *runLock) file() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// holder finds a living process that holds the flock on the file that fd has open.
//
// The number in /proc/locks is that of the process that took the lock. It may be dead while a child
// still holds the lock. So holder searches all open files of all processes for this one; their
// fdinfo says whether the process holds the lock through it, and which process took it: proc(5). If
// that one is not among the holders, it was killed.
func holder(fd int) *host.Busy {
	var want unix.Stat_t
	if err := unix.Fstat(fd, &want); err != nil {
		return &host.Busy{}
	}

	entries, _ := os.ReadDir("/proc")
	var found []int
	taker := 0
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if by, ok := holds(pid, &want); ok {
			found = append(found, pid)
			taker = by
		}
	}

	if len(found) == 0 {
		return &host.Busy{} // another user's, or gone meanwhile
	}
	pid := slices.Min(found) // of a family the eldest, but for a wrapped counter

	argv := command(pid)
	if argv == "" {
		return &host.Busy{} // it has ended meanwhile
	}
	return &host.Busy{
		PID:     pid,
		Command: argv,
		Orphan:  isOrphaned(taker, found, isGpuadm),
	}
}

// isOrphaned says whether the process that took a lock has ended, and others hold it. In a PID
// namespace of its own, as in a container, the kernel has no number for a process that is gone
// (locks_translate_pid in fs/locks.c): then no holder is a gpuadm.
func isOrphaned(taker int, holders []int, isGpuadm func(pid int) bool) bool {
	if taker > 0 {
		return !slices.Contains(holders, taker)
	}
	return !slices.ContainsFunc(holders, isGpuadm)
}

// isGpuadm says whether a process runs this program, in whatever version.
func isGpuadm(pid int) bool {
	theirs, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	mine, _ := os.ReadFile("/proc/self/comm")
	return err != nil || string(theirs) == string(mine)
}

// takerOf returns the process that took a lock, by the line "lock:  1: FLOCK  ADVISORY  WRITE 4711
// 00:19:1184 0 EOF" of fdinfo; 0 where it is of another PID namespace. held is false if no flock is
// held through the file.
func takerOf(fdinfo string) (taker int, held bool) {
	for line := range strings.Lines(fdinfo) {
		words := strings.Fields(line)
		if len(words) > 5 && words[0] == "lock:" && words[2] == "FLOCK" {
			taker, _ = strconv.Atoi(words[5])
			return taker, true
		}
	}
	return 0, false
}

// holds says whether a process holds the lock on a file, and which process took it; 0 if that is
// unknown.
func holds(pid int, want *unix.Stat_t) (taker int, held bool) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		about, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, filepath.Base(fd)))
		taker, held := takerOf(string(about))
		if !held {
			continue
		}
		var st unix.Stat_t // only of locked files: stat(2) may hang on a dead network file system
		if unix.Stat(fd, &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino {
			return taker, true
		}
	}

	return 0, false
}

// command is a process' argv as ps shows it.
func command(pid int) string {
	argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(argv), "\x00", " "))
}
