// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Alone runs f on a thread of its own that has no child processes, and that ends with f. A wait for
// all children there takes none of another test: Go starts commands from any thread that is free,
// so any other thread may be the parent of another test's command, for which os/exec waits.
func Alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked after f: the thread ends with this goroutine
		if childless() {
			f()
			return
		}
		Alone(f) // on another thread, since this one is taken until then
		runtime.UnlockOSThread()
	}()
	<-done
}

// childless reports whether the calling thread has no children, and gets none from others: what a
// thread that ends leaves behind goes to the process's first one (kernel/exit.c,
// find_alive_thread).
func childless() bool {
	if unix.Gettid() == os.Getpid() {
		return false
	}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL|unix.WNOTHREAD, nil)
	return errors.Is(err, unix.ECHILD)
}
