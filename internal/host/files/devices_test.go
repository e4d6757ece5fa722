// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestOpenDevicesWithoutPtrace: without CAP_SYS_PTRACE root may list the open files of a process that
// has more rights, and may not see what they are. That is not a process without devices.
func TestOpenDevicesWithoutPtrace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root has a capability to do without")
	}
	process := exec.Command("sleep", "600")
	null, err := os.Open("/dev/null")
	must.OK(t, err)
	defer null.Close()
	process.Stdin = null
	must.OK(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })

	f := NewLive(must.Get(OpenRoot("/"))(t))
	found, err := f.OpenDevices(process.Process.Pid)
	check.That(t, err == nil && len(found) > 0, "with all rights: %v, %v", found, err)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the thread ends with its rights
		if err := withoutPtrace(); err != nil {
			t.Error(err)
			return
		}
		found, err = f.OpenDevices(process.Process.Pid)
	}()
	<-ended
	check.That(t, errors.Is(err, fs.ErrPermission), "without CAP_SYS_PTRACE: %v, %v", found, err)
}

// withoutPtrace takes CAP_SYS_PTRACE from this thread.
func withoutPtrace() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	return unix.Capset(&header, &sets[0])
}
