// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// blindTo is a machine with a file that cannot be read.
type blindTo struct {
	host.View
	name string
}

func (b blindTo) ReadFile(name string) ([]byte, error) {
	if name == b.name {
		return nil, &host.FileError{
			Verb:  "read",
			Path:  name,
			Cause: syscall.EIO,
		}
	}
	return b.View.ReadFile(name)
}

// TestRefusalsUnread: kubelet is not restarted where it is not known whether it would start again. A
// file that is not there is known.
func TestRefusalsUnread(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	precheck := canRestart(facts.Kubelet{Unit: "kubelet.service"})
	check.OK(t, precheck(t.Context(), n))
	for _, name := range []string{
		"/proc/swaps", "/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/memory_manager_state",
	} {
		err := precheck(t.Context(), blindTo{n, name})
		check.That(t, trouble.IsUnknown(err), "without %s: %v", name, err)
	}
}
