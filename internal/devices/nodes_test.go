// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// unreadable is a machine on which one file cannot be read.
type unreadable struct {
	host.View
	file string
}

func (u unreadable) ReadFile(name string) ([]byte, error) {
	if name == u.file {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EIO}
	}
	return u.View.ReadFile(name)
}

// TestCapabilities: an instance whose device cannot be read may have users; an instance that
// the driver does not list has no device.
func TestCapabilities(t *testing.T) {
	const gi = devices.CapabilitiesFolder + "/gpu0/mig/gi3"
	const machine = "-- proc/driver/nvidia/capabilities/gpu0/mig/gi3/access --\nDeviceFileMinor: 30\n" +
		"-- proc/driver/nvidia/capabilities/gpu0/mig/gi3/ci0/access --\nDeviceFileMinor: 31\n"
	view := must.Get(simhost.New([]byte(machine)))(t).View()
	found, err := devices.Capabilities(view, 0, 3, []int{0, 1})
	check.List(t, found, []int{30, 31}, "with an instance that is not listed:")
	must.OK(t, err)

	for _, file := range []string{gi + "/access", gi + "/ci0/access"} {
		_, err := devices.Capabilities(unreadable{view, file}, 0, 3, []int{0})
		check.That(t, errors.Is(err, syscall.EIO), "%s: %v", file, err)
	}
}
