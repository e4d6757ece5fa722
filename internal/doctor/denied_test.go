// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
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

// deniedOf returns the finding of a denial that the audit log has since the boot.
func deniedOf(t *testing.T, line string) Cause {
	t.Helper()
	w := incident.Joined(t, true)
	w.Put("sys/fs/selinux/enforce nonl", "1\n")
	w.Put("var/log/audit/audit.log", "type=AVC msg=audit(1767322800.683:927): "+line+"\n")
	for _, f := range examine(t, w.Node()).Causes {
		if f.Code == "SYS-010" {
			return f
		}
	}
	t.Fatal("no finding")
	return Cause{}
}

// TestDeniedByName: where the kernel says only the last part of a name, as for a file that was not
// opened, the class says whether it is a device file; the command finds the file by its name.
func TestDeniedByName(t *testing.T) {
	const denies = `avc:  denied  { read } for  pid=99 comm="x" name="%s" dev="dm-0" ino=7 ` +
		`scontext=system_u:system_r:container_t:s0 tcontext=system_u:object_r:user_tmp_t:s0 tclass=%s permissive=0`
	byName := "sudo find /etc /opt /run /usr -xdev -name %s -exec restorecon -v {} +"
	const boolean = "sudo setsebool -P container_use_devices on"
	for _, c := range []struct{ name, class, command string }{
		{"libnvidia-ml.so.580.65.06", "file", fmt.Sprintf(byName, "libnvidia-ml.so.580.65.06")},
		{"libcuda.so.1", "lnk_file", fmt.Sprintf(byName, "libcuda.so.1")},
		{"libnvcuvid.so.580.65.06", "file", fmt.Sprintf(byName, "libnvcuvid.so.580.65.06")},
		{"nvidia-smi", "file", fmt.Sprintf(byName, "nvidia-smi")},
		{"nvidiactl", "chr_file", boolean},
		{"nvidia-caps", "dir", boolean},
		{"nvidia", "dir", fmt.Sprintf(byName, "nvidia")},
	} {
		f := deniedOf(t, fmt.Sprintf(denies, c.name, c.class))
		check.Equal(t, strings.Join(f.Commands, "; "), c.command, "%s:", c.name)
	}
}

// TestDeniedInTheAuditLog: while auditd runs the kernel's log has no denial of AppArmor, and the
// command shows those in the audit log.
func TestDeniedInTheAuditLog(t *testing.T) {
	f := deniedOf(t, `apparmor="DENIED" operation="open" class="file" profile="cri-containerd.apparmor.d" `+
		`name="/dev/nvidiactl" pid=23683 comm="nvidia-smi" requested_mask="wr" denied_mask="wr" fsuid=0 ouid=0`)
	const shows = `sudo aa-status; sudo grep 'apparmor="DENIED"' /var/log/audit/audit.log | tail -n 20`
	check.Equal(t, strings.Join(f.Commands, "; "), shows, "the command:")
}

// TestDeniedQuoted: a container chooses the names of its files. The command that an operator copies
// has such a name as one word.
func TestDeniedQuoted(t *testing.T) {
	const denies = `avc:  denied  { read } for  pid=99 comm="x" %s dev="dm-0" ino=7 ` +
		`scontext=system_u:system_r:container_t:s0 tcontext=system_u:object_r:user_tmp_t:s0 tclass=file permissive=0`
	for object, command := range map[string]string{
		`path="/srv/nvidia;reboot"`:   "sudo restorecon -Rv '/srv/nvidia;reboot'",
		`path="/srv/$(x)'nvidia"`:     `sudo restorecon -Rv '/srv/$(x)'\''nvidia'`,
		`path="/opt/NVIDIA/a_b-1.so"`: "sudo restorecon -Rv /opt/NVIDIA/a_b-1.so",
		"name=\"nvidia`x`\"":          "sudo find /etc /opt /run /usr -xdev -name 'nvidia`x`' -exec restorecon -v {} +",
	} {
		f := deniedOf(t, fmt.Sprintf(denies, object))
		check.Equal(t, strings.Join(f.Commands, "; "), command, "%s:", object)
	}
}
