// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// rooms are the folders that must take files, and how many bytes they need: below that a package or
// a socket's folder is not written.
func rooms() map[string]uint64 {
	return map[string]uint64{"/run": 1 << 20, "/boot": 16 << 20}
}

// sealed says whether a folder lies on a file system that is mounted read-only: what an image
// sealed is full by design, and what the kernel made read-only has a check of its own.
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
	names := []string{"/", "/run", "/var", "/boot", "/var/log/pods"}
	if k := m.Facts().Kubelet; k.Unit != "" {
		names = append(names, k.Folder())
	}
	if e, _, ok := m.engine(); ok { // their defaults: containerd's root, containers-storage.conf(5), dockerd's data-root
		names = append(names, map[string]string{"containerd": "/var/lib/containerd", "crio": "/var/lib/containers", "docker": "/var/lib/docker"}[e.Name])
	}
	for _, name := range names {
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
		return r.Bytes < cmp.Or(rooms()[name], 64<<20), fmt.Sprintf("%d MiB", r.Bytes>>20)
	})
}

func noInodes(m *Machine) []Finding {
	return m.eachRoom(func(_ string, r host.Room) (bool, string) { return r.Files < 64, fmt.Sprintf("%d inodes", r.Files) })
}

// enoughWatches is a limit that no node reaches: what operators raise it to.
const enoughWatches = 8192

// noWatches counts root's inotify instances, in containers too, where the limit is as low as the
// kernel's default: at the limit no daemon starts that watches a folder. Sources: inotify(7),
// max_user_instances; proc_pid_fd(5), anon_inode.
func noWatches(m *Machine) []Finding {
	text, _ := m.text("/proc/sys/fs/inotify/max_user_instances")
	most, err := strconv.Atoi(text)
	pids, _ := m.View.ReadDir("/proc")
	if err != nil || most >= enoughWatches {
		return nil
	}
	used := 0
	for _, pid := range pids {
		process := path.Join("/proc", pid)
		if i, err := m.View.Stat(process); !pattern.Only(pid, pattern.Digits) || err != nil || i.UID != 0 {
			continue
		}
		open, _ := m.View.ReadDir(process + "/fd")
		for _, fd := range open {
			if to, _ := m.View.Readlink(process + "/fd/" + fd); strings.HasSuffix(to, "anon_inode:inotify") {
				used++
			}
		}
	}
	if used < most {
		return nil
	}
	return []Finding{{What: fmt.Sprintf("root has %d inotify instances, and fs.inotify.max_user_instances is %d", used, most)}}
}

// skewed says what the API server's clock shows of this one's, and what that does to kubelet's
// certificate.
func (m *Machine) skewed(by time.Duration, way string) []Finding {
	t, _ := m.clock()
	what := fmt.Sprintf("the clock is %v %s the API server's", by, way)
	if t.least {
		what = fmt.Sprintf("by the clock the API server's certificate does not hold: the clock is at least %v %s the server's, unless its certificate was not renewed", by, way)
	} else if k := m.Facts().Kubelet; !k.Expired.IsZero() && k.Begins.Before(t.server) && k.Expired.After(t.server) && (k.Begins.After(t.here) || k.Expired.Before(t.here)) {
		what += ", and by it kubelet's certificate, which is good, is not valid"
	}
	return []Finding{{What: what}}
}

func clockAhead(m *Machine) []Finding {
	if by := m.skew(); by > 0 {
		return m.skewed(by, "ahead of")
	}
	return nil
}

// clockBehind asks the API server, or else compares the clock with what has been there before: a
// certificate's beginning, and files that programs of this machine write.
func clockBehind(m *Machine) []Finding {
	now := m.View.Now()
	if by := m.skew(); by < 0 {
		return m.skewed(-by, "behind")
	}
	if k := m.Facts().Kubelet; k.Begins.After(now.Add(time.Minute)) {
		if _, known := m.clock(); !known {
			return []Finding{{What: fmt.Sprintf("the clock says %s, and kubelet's certificate was made %s", now.UTC().Format(time.DateTime), k.Begins.Format(time.DateTime))}}
		}
	}
	for _, name := range []string{
		facts.DpkgStatus, "/var/lib/rpm/rpmdb.sqlite", "/var/lib/systemd/timesync/clock", "/var/lib/chrony/drift",
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

// noNameserver takes a missing file for no fault: the C library then asks this machine's own
// server, resolv.conf(5).
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

// readOnly compares what is mounted with what fstab(5) asks for. XFS does not become read-only, it
// shuts down, which only the log says.
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
