// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"errors"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAlone: other goroutines start commands and wait for them, from any thread; Alone's thread sees none of them.
func TestAlone(t *testing.T) {
	t.Parallel()
	var others sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exec.Command("sleep", "0.01").Run(); err != nil {
					t.Errorf("cannot run a command beside: %v", err)
					return
				}
			}
		})
	}
	for range 100 {
		Alone(func() {
			runtime.Gosched()
			for range 20 {
				var status unix.WaitStatus
				pid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD|unix.WNOHANG, nil)
				if !errors.Is(err, unix.ECHILD) {
					t.Errorf("waited for %d (%v), which is another goroutine's", pid, err)
				}
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
			}
		})
	}
	close(stop)
	others.Wait()
}
