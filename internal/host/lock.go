// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockFile is the run lock of the running machine. It lies in a tmpfs and is never removed: a lock file that
// comes and goes can be locked by two.
const lockFile = "/run/gpuadm.lock"

// How the run lock of a machine is opened: a root folder is locked itself, so that no file is left in an image.
const (
	lockFolder = unix.O_RDONLY | unix.O_DIRECTORY
	lockLive   = unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW
)

// runLock is the machine's one run lock, flock(2) on an open file. The lock belongs to the open file, not to
// the process: children that inherit the descriptor hold it on when gpuadm is killed.
type runLock struct {
	mu   sync.Mutex
	held *os.File
}

// take takes the lock or fails with *Busy. Its descriptor is close-on-exec: only who is given it by file() inherits it.
func (l *runLock) take(path string, flags int) (unlock func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		return nil, &Busy{PID: os.Getpid(), Command: command(os.Getpid())}
	}
	fd, err := open(unix.AT_FDCWD, path, flags, 0o600)
	if err != nil {
		return nil, fail("lock", path, err)
	}
	err = again(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		busy := holder(fd)
		unix.Close(fd)
		return nil, busy
	}
	if err != nil {
		unix.Close(fd)
		return nil, fail("lock", path, err)
	}
	l.held = os.NewFile(uintptr(fd), filepath.Base(path))
	return sync.OnceFunc(l.release), nil
}

// release lets go for all who inherited the lock: after a run that ended by itself, what a package left running
// in the background shall not keep the next run out. Only a killed run leaves its children holding it.
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
