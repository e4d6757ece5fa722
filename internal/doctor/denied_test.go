// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
)

// auditView is a machine whose audit log cannot be looked at, or whose systemd does not answer.
type auditView struct {
	host.View
	stat, read, units error
}

func (a auditView) Stat(name string) (host.Info, error) {
	if name == auditLog && a.stat != nil {
		return host.Info{}, &host.FileError{
			Verb:  "check",
			Path:  name,
			Cause: a.stat,
		}
	}
	return a.View.Stat(name)
}

func (a auditView) ReadAt(name string, p []byte, off int64) (int, error) {
	if name == auditLog && a.read != nil {
		return 0, &host.FileError{Verb: "read", Path: name, Cause: a.read}
	}
	return a.View.ReadAt(name, p, off)
}

func (a auditView) Unit(ctx context.Context, name string) (host.Unit, error) {
	if a.units != nil {
		return host.Unit{}, a.units
	}
	return a.View.Unit(ctx, name)
}

// TestDenialsNotRead: where the audit log could not be read, the report says that denials were not
// checked, whatever the cause; where the time of the boot is not known, denials of an earlier boot
// are not a fault.
func TestDenialsNotRead(t *testing.T) {
	const before = "type=AVC msg=audit(1007322800.683:927): avc:  denied  { read write } for  pid=99 " +
		"comm=\"nvidia-smi\" path=\"/dev/nvidiactl\" scontext=system_u:system_r:container_t:s0 " +
		"tcontext=system_u:object_r:xserver_misc_device_t:s0 tclass=chr_file permissive=0\n"
	for name, c := range map[string]struct {
		view   auditView
		unread bool
	}{
		"read":                 {auditView{}, false},
		"not looked at, EIO":   {auditView{stat: syscall.EIO}, true},
		"not read, EIO":        {auditView{read: syscall.EIO}, true},
		"not read, EACCES":     {auditView{read: syscall.EACCES}, true},
		"systemd is not there": {auditView{units: errors.New("systemd does not answer")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := incident.Joined(t, true)
			w.Put("sys/fs/selinux/enforce nonl", "1\n")
			w.Put("var/log/audit/audit.log", before)
			c.view.View = w.Node()
			r := examine(t, c.view)
			check.That(t, !strings.Contains(codes(r), "SYS-010"), "root causes %v", r.Causes)
			isNamed := false
			for _, u := range r.Unread {
				isNamed = isNamed || u.What == "what SELinux and AppArmor denied"
			}
			check.That(t, isNamed == c.unread, "not checked: %v", r.Unread)
		})
	}
}
