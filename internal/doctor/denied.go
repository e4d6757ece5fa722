// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// auditLog is where auditd(8) keeps what SELinux and AppArmor deny. Without auditd the kernel's log
// has the same lines.
const auditLog = "/var/log/audit/audit.log"

// newestAudit is how much of the log is read: the end, which has what happened last.
const newestAudit = 4 << 20

// Parts of a line of the audit log. The kernel gives a time in seconds:
// "audit: type=1400 audit(1684465329.146:35): …", "type=AVC msg=audit(1684465329.146:35): …".
var (
	auditTime   = pattern.Of(`audit\((\d+)\.\d+:\d+\)`)
	auditObject = pattern.Of(`\b(?:path|name)="([^"]*)"`)
	auditClass  = pattern.Of(`\btclass=(\w+)`)
	auditActor  = pattern.Of(`\b(?:scontext=\S*?:\S*?:(\w+)|profile="([^"]*)")`)
)

// deniedFiles finds what a security module has denied of NVIDIA's files since the boot. A denial
// that is over by a setting, such as a boolean that is on now, is none.
func deniedFiles(m *Machine) (found []Finding) {
	seen := map[string]bool{}
	for _, denial := range m.denials() {
		object := auditObject().FindStringSubmatch(denial.line)
		actor := auditActor().FindStringSubmatch(denial.line)
		if object == nil || actor == nil || !isDrivers(object[1]) {
			continue
		}

		finding := m.denied(denial, object[1], actor[1], actor[2])
		if finding.What == "" || seen[finding.Object+finding.Fix] {
			continue
		}
		seen[finding.Object+finding.Fix] = true
		found = append(found, finding)
	}

	return found
}

// isDrivers reports whether a file is NVIDIA's. The libraries of CUDA and of video have names
// without the vendor's.
// Source: https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/installedcomponents.html
func isDrivers(object string) bool {
	name := path.Base(object)
	isLibrary := strings.HasPrefix(name, "libcuda.so") || strings.HasPrefix(name, "libnvcuvid.so")
	return isLibrary || strings.Contains(strings.ToLower(object), "nvidia")
}

// denied describes one denial: of SELinux to a type of processes, or of AppArmor to a profile. A
// file that has changed since may have got its label: inode(7), ctime.
func (m *Machine) denied(denial denial, object, selinuxType, profile string) Finding {
	switch {
	case profile != "":
		return Finding{
			Object:  object,
			What:    fmt.Sprintf("AppArmor denied %s to the profile %s", object, profile),
			Fix:     "allow the driver's files in the profile, and load the profile again",
			Command: "sudo aa-status; " + showsAppArmor(denial),
		}
	case !m.enforces():
		return Finding{}
	case !isDevice(denial.line, object):
		if !path.IsAbs(object) {
			return mislabelled(object, selinuxType, restoresByName(object))
		}
		if info, err := m.View.Stat(object); err == nil && info.Ctime.After(denial.at) {
			return Finding{}
		}
		return mislabelled(object, selinuxType, "sudo restorecon -Rv "+host.ShellWord(object))
	}

	boolean, on := m.deviceBoolean()
	if on {
		return Finding{}
	}
	return Finding{
		Object:  object,
		What:    fmt.Sprintf("SELinux denied the device file %s to %s", object, selinuxType),
		Fix:     "let containers use the device files: " + boolean,
		Command: "sudo setsebool -P " + boolean + " on",
	}
}

// showsAppArmor shows AppArmor's newest denials in the log that has this one. While auditd runs the
// kernel's log gets none: kauditd_thread in kernel/audit.c of the kernel's tree.
func showsAppArmor(denial denial) string {
	if denial.audited {
		return "sudo grep 'apparmor=\"DENIED\"' " + auditLog + " | tail -n 20"
	}
	return "sudo journalctl --dmesg --grep 'apparmor=\"DENIED\"' --lines=20"
}

// isDevice reports whether SELinux has denied a device file, or the folder of some. The kernel says
// a file's path only where it has been opened, else the last part of its name:
// dump_common_audit_data in security/lsm_audit.c of the kernel's tree;
// https://github.com/NVIDIA/libnvidia-container/issues/126.
func isDevice(line, object string) bool {
	if path.IsAbs(object) {
		return strings.HasPrefix(object, "/dev/")
	}

	class := auditClass().FindStringSubmatch(line)
	switch {
	case class == nil:
		return strings.HasPrefix(object, "nvidia")
	case class[1] == "dir":
		return strings.HasPrefix(object, "nvidia-caps")
	}
	return class[1] == "chr_file"
}

// mislabelled describes a file whose label SELinux's policy denies to a type of processes. The
// command has the file's name quoted: a container chooses it, and the kernel writes all visible
// characters but the double quote as they are. Source: audit_string_contains_control in
// kernel/audit.c of the kernel's tree.
func mislabelled(object, selinuxType, command string) Finding {
	return Finding{
		Object:  object,
		What:    fmt.Sprintf("SELinux denied %s to %s", object, selinuxType),
		Fix:     "give the file the label that the policy has for it",
		Command: command,
	}
}

// restoresByName labels the files of a name in the folders that have files of the driver and the
// toolkit.
func restoresByName(name string) string {
	return "sudo find /etc /opt /run /usr -xdev -name " + host.ShellWord(name) + " -exec restorecon -v {} +"
}

// enforces reports whether SELinux denies, and does not only report: selinux(8).
func (m *Machine) enforces() bool {
	text, _ := m.text("/sys/fs/selinux/enforce")
	return strings.HasPrefix(text, "1")
}

// deviceBoolean returns the boolean of SELinux's that lets containers use the GPUs' devices, and
// whether it is on: the narrow one where the policy has it.
// Sources: https://github.com/containers/container-selinux/pull/306
// (container_use_xserver_devices);
// https://github.com/fedora-selinux/selinux-policy/issues/1695 (container_use_devices).
func (m *Machine) deviceBoolean() (name string, on bool) {
	name = "container_use_devices"
	for _, boolean := range []string{name, "container_use_xserver_devices"} {
		file := "/sys/fs/selinux/booleans/" + boolean
		if !m.has(file) {
			continue
		}
		value, _ := m.text(file) // "0 0": the value now, and the one that waits
		if strings.HasPrefix(value, "1") {
			return boolean, true
		}
		name = boolean
	}

	return name, false
}

// denial is a line of a log that tells of one, and its time.
type denial struct {
	line    string
	at      time.Time
	audited bool // the audit log has it
}

// denials are the lines of the audit log and of the kernel's log that tell of a denial
// since the boot.
func (m *Machine) denials() (found []denial) {
	audited, booted := m.auditLines()
	for i, line := range slices.Concat(audited, m.Log()) {
		isDenial := strings.Contains(line, "avc:  denied") || strings.Contains(line, `apparmor="DENIED"`)
		if !isDenial || strings.Contains(line, "permissive=1") {
			continue
		}
		at := auditTime().FindStringSubmatch(line)
		if at == nil {
			continue
		}
		seconds, err := strconv.ParseInt(at[1], 10, 64)
		when := time.Unix(seconds, 0)
		if err == nil && !when.Before(booted) {
			found = append(found, denial{
				line:    line,
				at:      when,
				audited: i < len(audited),
			})
		}
	}

	return found
}

// auditLines are the newest lines of the audit log, and when the machine booted: the log has older
// boots, too. A machine without auditd has no such lines. What cannot be read is noted.
func (m *Machine) auditLines() (lines []string, booted time.Time) {
	end, err := m.endOf(auditLog, newestAudit)
	if host.NotExist(err) {
		return nil, booted
	}
	unit, known := m.Unit("systemd-journald.service")
	if err == nil && (!known || unit.Uptime == 0) {
		err = errors.New("systemd does not say when the machine booted")
	}
	if err != nil {
		m.cannotRead(denialsPart, err)
		return nil, booted
	}
	return linesOf(end), m.View.Now().Add(-unit.Uptime)
}

// denialsPart is what a report calls the denials where they were not looked at.
const denialsPart = "what SELinux and AppArmor denied"

// endOf reads the end of a file. If the file became shorter meanwhile, as a rotated log does, endOf
// reads as far as it goes.
func (m *Machine) endOf(name string, most int64) ([]byte, error) {
	info, err := m.View.Stat(name)
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size-most)
	end := make([]byte, info.Size-from)
	n, err := m.View.ReadAt(name, end, from)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return end[:n], err
}
