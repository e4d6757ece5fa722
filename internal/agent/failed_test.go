// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// failing is a machine whose units systemd describes like this.
type failing struct {
	*simhost.Node
	units map[string]host.Unit
	jobs  []string
}

func (f *failing) Unit(_ context.Context, name string) (host.Unit, error) {
	return f.units[name], nil
}

func (f *failing) SetUnit(_ context.Context, name string, to host.UnitChange) error {
	f.jobs = append(f.jobs, to.Job+" "+name)
	return nil
}

// TestClearFailed: a failed unit of gpuadm's is forgotten, a kubelet that failed at gpuadm's gate is
// started, and all other units stay as they are: one that runs, a kubelet that fails for another
// reason, and one that systemd starts again anyway.
func TestClearFailed(t *testing.T) {
	failedAt := func(argv ...string) host.Unit {
		return host.Unit{Active: "failed", Refused: argv}
	}
	for name, c := range map[string]struct {
		unit string
		is   host.Unit
		want string
	}{
		"nothing failed":         {stages.BootUnit, host.Unit{Active: "active"}, ""},
		"the boot unit":          {stages.BootUnit, host.Unit{Active: "failed"}, "reset-failed gpuadm.service"},
		"kubelet at the gate":    {stages.KubeletUnit, failedAt(stages.Binary, "gate"), "start kubelet.service"},
		"a package's gate":       {stages.KubeletUnit, failedAt("/usr/bin/gpuadm", "gate"), "start kubelet.service"},
		"kubelet itself":         {stages.KubeletUnit, failedAt(), ""},
		"another ExecStartPre":   {stages.KubeletUnit, failedAt("/bin/false"), ""},
		"kubelet comes anyway":   {stages.KubeletUnit, host.Unit{Active: "activating", Refused: []string{"g", "gate"}}, ""},
		"an operator stopped it": {stages.KubeletUnit, host.Unit{Active: "inactive"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := must.Get(simhost.New([]byte("-- etc/systemd/system/gpuadm.service --\n[Unit]\n")))(t)
			f := &failing{Node: n, units: map[string]host.Unit{c.unit: c.is}}
			cleared, err := (&Run{Host: f}).ClearFailed(t.Context())
			must.OK(t, err)
			check.Equal(t, strings.Join(f.jobs, ", "), c.want, "done")
			check.Equal(t, len(cleared), len(f.jobs), "units named")
		})
	}
}

// unreadable is a machine with a folder that cannot be looked at.
type unreadable struct {
	*failing
	folder string
}

func (u unreadable) Lstat(name string) (host.Info, error) {
	if path.Dir(name) == u.folder {
		return host.Info{}, &host.FileError{
			Verb:  "read",
			Path:  name,
			Cause: syscall.EIO,
		}
	}
	return u.failing.Lstat(name)
}

func (u unreadable) ReadDir(name string) ([]string, error) {
	if name == u.folder {
		return nil, &host.FileError{
			Verb:  "read",
			Path:  name,
			Cause: syscall.EIO,
		}
	}
	return u.failing.ReadDir(name)
}

// TestClearFailedUnread: whether gpuadm runs at boot is not known where the folder of its unit
// cannot be looked at; the machine is not taken for one without the unit.
func TestClearFailedUnread(t *testing.T) {
	const unitFolder = "/etc/systemd/system"
	n := must.Get(simhost.New([]byte("-- usr/lib/systemd/system/x --\n")))(t)
	f := &failing{Node: n, units: map[string]host.Unit{stages.BootUnit: {Active: "failed"}}}
	cleared, err := (&Run{Host: unreadable{f, unitFolder}}).ClearFailed(t.Context())
	check.That(t, errors.Is(err, syscall.EIO) && cleared == nil, "%q, %v", cleared, err)

	cleared, err = (&Run{Host: f}).ClearFailed(t.Context())
	check.That(t, err == nil && cleared == nil, "a machine without the unit: %q, %v", cleared, err)
}
