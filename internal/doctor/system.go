// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

func systemChecks() []Check {
	return []Check{
		{
			Code: "SYS-001", Title: "a file system is full",
			Reads:   "the room that is left for root on /, /var and /run (statfs)",
			Meaning: "packages, images and the files that daemons write at their start cannot be written",
			Fix:     "free room: remove logs and packages that are not needed, and unused images by crictl rmi --prune",
			Command: "df -h / /var /run && du -xh --max-depth=2 /var | sort -h | tail", Interrupts: "programs of a package that is removed; pods pull a removed image again",
			Find:    fullDisks,
			Sources: []string{"statfs(2)", "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"},
		},
		{
			Code: "SYS-002", Title: "a file system has no inodes left",
			Reads:   "the inodes that are free on /, /var and /run (statfs)",
			Meaning: "no file can be made, though there is room",
			Fix:     "remove files that are not needed, and unused images by crictl rmi --prune; delete nothing by hand in the engine's folders",
			Command: "df -i / /var /run && du -x --inodes --max-depth=3 /var | sort -n | tail", Interrupts: "programs that use a removed file; pods pull a removed image again",
			Find:    noInodes,
			Sources: []string{"statfs(2)", "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"},
		},
		{
			Code: "SYS-003", Title: "the clock is behind",
			Reads:   "the clock, and when files of the packager, of the time daemons and of kubelet were last changed",
			Meaning: "certificates are not yet valid by this clock: the API server and repositories are refused",
			Fix:     "set the clock, by the time daemon or by hand", Command: "timedatectl set-ntp true",
			Interrupts: "nothing; timers may run again", Find: clockBehind,
			Sources: []string{"stat(2)", "systemd-timesyncd.service(8), FILES: the clock is never before that of its file"},
		},
		{
			Code: "SYS-004", Title: "the clock is not synchronised",
			Reads:   "timedatectl show: NTP and NTPSynchronized, once the machine is up for 15 minutes",
			Meaning: "the clock drifts; certificates and leases of the cluster go by it",
			Fix:     "find out why the time daemon reaches no server: its log names the servers",
			Command: "timedatectl timesync-status || chronyc sources", Interrupts: "nothing", Find: clockNotSynchronised,
			Sources: []string{"org.freedesktop.timedate1(5), NTPSynchronized", "adjtimex(2), STA_UNSYNC"},
		},
		{
			Code: "SYS-005", Title: "no name can be resolved",
			Reads:   "/etc/resolv.conf",
			Meaning: "neither repositories nor the API server are found by name, and kubelet hands the file to pods",
			Fix:     "start what makes the file that the link leads to, or write a nameserver into it",
			Command: "systemctl enable --now systemd-resolved", Interrupts: "nothing", Find: noNameserver,
			Sources: []string{
				"resolv.conf(5)", "systemd-resolved.service(8), /ETC/RESOLV.CONF",
				"https://kubernetes.io/docs/tasks/administer-cluster/dns-debugging-resolution/",
			},
		},
		{
			Code: "SYS-006", Title: "a file system became read-only",
			Reads:      "/proc/self/mounts, /etc/fstab and the kernel log",
			Meaning:    "after errors of the disk the kernel lets no one write: packages, kubelet and logs fail",
			Fix:        "find the disk's errors in the kernel log, replace the disk or check the file system, and reboot",
			Command:    "journalctl --dmesg --grep 'I/O error|EXT4-fs|XFS|Remounting'",
			Interrupts: "the node, while it reboots", Find: readOnly,
			Sources: []string{"ext4(5), errors=remount-ro", "mount(8)", "https://docs.kernel.org/admin-guide/ext4.html"},
		},
	}
}

// rooms are the folders that must take files, and how many bytes they need: below that a package or a socket's folder is not written.
func rooms() map[string]uint64 {
	return map[string]uint64{"/": 64 << 20, "/var": 64 << 20, "/run": 1 << 20}
}

// sealed says whether a folder lies on a file system that is mounted read-only: what an image sealed is full by design, and what the kernel
// made read-only has a check of its own.
func (m *Machine) sealed(name string) bool {
	at, sealed := "", false
	for _, f := range m.mounts("/proc/self/mounts") {
		if len(f[1]) >= len(at) && (f[1] == name || f[1] == "/") {
			at, sealed = f[1], slices.Contains(strings.Split(f[3], ","), "ro")
		}
	}
	return sealed
}

// mounts are the fields of each line of a table of mounts: fstab(5).
func (m *Machine) mounts(table string) (all [][]string) {
	text, _ := m.text(table)
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 3 && !strings.HasPrefix(f[0], "#") {
			all = append(all, f)
		}
	}
	return all
}

// eachRoom asks for the room of each file system once: two folders with the same room are on one.
func (m *Machine) eachRoom(lacks func(name string, r host.Room) (is bool, left string)) (found []Finding) {
	var seen []host.Room
	for _, name := range []string{"/", "/run", "/var"} {
		if m.sealed(name) {
			continue
		}
		r, err := m.View.Room(name)
		if err != nil {
			m.cannotRead("room on "+name, err)
			continue
		}
		if is, left := lacks(name, r); is && !slices.Contains(seen, r) {
			found = append(found, Finding{Object: name, What: name + " has " + left + " left"})
		}
		seen = append(seen, r)
	}
	return found
}

func fullDisks(m *Machine) []Finding {
	return m.eachRoom(func(name string, r host.Room) (bool, string) {
		return r.Bytes < rooms()[name], fmt.Sprintf("%d MiB", r.Bytes>>20)
	})
}

func noInodes(m *Machine) []Finding {
	return m.eachRoom(func(_ string, r host.Room) (bool, string) { return r.Files < 64, fmt.Sprintf("%d inodes", r.Files) })
}

// clockBehind compares the clock with files that programs of this machine write: none can be from the future.
func clockBehind(m *Machine) []Finding {
	now := m.View.Now()
	for _, name := range []string{
		packages.DpkgStatus, "/var/lib/rpm/rpmdb.sqlite", "/var/lib/systemd/timesync/clock", "/var/lib/chrony/drift",
		"/var/lib/kubelet/pki/kubelet-client-current.pem",
	} {
		if i, err := m.View.Stat(name); err == nil && i.Ctime.After(now.Add(24*time.Hour)) {
			day := func(t time.Time) string { return t.UTC().Format(time.DateOnly) }
			return []Finding{{What: fmt.Sprintf("the clock says %s, and %s was changed %s", day(now), name, day(i.Ctime))}}
		}
	}
	return nil
}

func clockNotSynchronised(m *Machine) []Finding {
	u, ok := m.Unit("systemd-journald.service")
	if !ok || u.Uptime < 15*time.Minute {
		return nil
	}
	out, err := m.View.Ask(m.ctx, "timedatectl", "show", "--property=NTP", "--property=NTPSynchronized")
	if err != nil {
		m.cannotRead("clock synchronisation", err)
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if !slices.Contains(lines, "NTP=yes") || !slices.Contains(lines, "NTPSynchronized=no") {
		return nil
	}
	return []Finding{{What: "a time daemon is switched on, and the kernel's clock was not synchronised since the boot"}}
}

// noNameserver takes a missing file for no fault: the C library then asks this machine's own server, resolv.conf(5).
func noNameserver(m *Machine) []Finding {
	const name = "/etc/resolv.conf"
	if _, err := m.View.Lstat(name); err != nil {
		return nil
	}
	data, err := m.View.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		to, _ := m.View.Readlink(name)
		finding := Finding{Object: name, What: name + " leads to " + to + ", which is not there"}
		if !strings.Contains(to, "systemd/resolve") {
			finding.Command = "ls -l " + name
		}
		return []Finding{finding}
	case err != nil:
		m.cannotRead(name, err)
		return nil
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			return nil
		}
	}
	return []Finding{{Object: name, What: name + " names no nameserver", Command: "cat " + name}}
}

// readOnly compares what is mounted with what fstab(5) asks for. XFS does not become read-only, it shuts down, which only the log says.
func readOnly(m *Machine) (found []Finding) {
	writable := map[string]bool{}
	for _, f := range m.mounts("/etc/fstab") {
		writable[path.Clean(f[1])] = !slices.Contains(strings.Split(f[3], ","), "ro")
	}
	for _, f := range m.mounts("/proc/self/mounts") {
		if slices.Contains(strings.Split(f[3], ","), "ro") && writable[path.Clean(f[1])] {
			found = append(found, Finding{Object: f[1], What: fmt.Sprintf("%s (%s on %s) is mounted read-only, and fstab wants it writable", f[1], f[2], f[0])})
		}
	}
	if line := said(m.Log(), "): Filesystem has been shut down", "): Shutting down filesystem", "Please unmount the filesystem and rectify"); line != "" && len(found) == 0 {
		found = append(found, Finding{What: "the kernel shut a file system down: " + line})
	}
	return found
}
