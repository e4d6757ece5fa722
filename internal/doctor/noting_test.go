// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A denied machine shows no user at the files of its processes, and has no other files.
type denied struct{ *simhost.Node }

func (d denied) ReadDir(name string) ([]string, error) {
	if isOfProcess().MatchString(name) {
		return nil, &host.FileError{
			Verb:  "list",
			Path:  name,
			Cause: syscall.EACCES,
		}
	}
	return nil, &host.FileError{Verb: "list", Path: name, Cause: fs.ErrNotExist}
}

// TestFilesOfProcessesAreOnePart: hundreds of processes that could not be looked at are one line,
// and what is not there is none.
func TestFilesOfProcessesAreOnePart(t *testing.T) {
	m := &Machine{ctx: t.Context()}
	m.View = noting{denied{new(simhost.Node)}, m}
	for pid := range 300 {
		_, err := m.View.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		check.That(t, err != nil, "it was read")
		_, _ = m.View.ReadDir(fmt.Sprintf("/etc/%d", pid))
	}

	unread := m.notRead()
	check.That(t, len(unread) == 1 && unread[0].What == "files of processes", "%v", unread)
}
