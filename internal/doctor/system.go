// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Limits that no node reaches: what operators raise them to, and the most that the kernel sets
// itself.
const (
	enoughInstances = 8192
	enoughWatches   = 1 << 20
)

// inotify is how much of inotify(7) root's processes use, in containers too.
type inotify struct{ instances, watches int }

// inotify counts root's inotify instances and their watches. Sources: proc_pid_fd(5),
// anon_inode; proc_pid_fdinfo(5), inotify.
func (m *Machine) inotify() inotify {
	used, _ := m.watching.read(m, "inotify", func() (used inotify, err error) {
		pids, err := m.View.ReadDir("/proc")
		for _, pid := range pids {
			process := path.Join("/proc", pid)
			info, err := m.View.Stat(process)
			if !pattern.Only(pid, pattern.Digits) || err != nil || info.UID != 0 {
				continue
			}
			open, _ := m.View.ReadDir(process + "/fd")
			for _, fd := range open {
				to, _ := m.View.Readlink(process + "/fd/" + fd)
				if !strings.HasSuffix(to, "anon_inode:inotify") {
					continue
				}
				used.instances++
				info, _ := m.View.ReadFile(process + "/fdinfo/" + fd) // fails of a process that has ended
				used.watches += strings.Count("\n"+string(info), "\ninotify wd:")
			}
		}

		return used, err
	})
	return used
}

// limit reads a number of the kernel's; ok is false where it is not known, or more than enough.
func (m *Machine) limit(name string, enough int) (most int, ok bool) {
	text, _ := m.text("/proc/sys/fs/inotify/" + name)
	most, err := strconv.Atoi(text)
	return most, err == nil && most < enough
}

// noInotifyInstance finds that root is at the limit: no daemon starts then that watches a folder.
// Source: inotify(7), max_user_instances.
func noInotifyInstance(m *Machine) []Finding {
	most, ok := m.limit("max_user_instances", enoughInstances)
	if !ok {
		return nil
	}
	used := m.inotify().instances
	if used < most {
		return nil
	}
	return []Finding{{What: fmt.Sprintf("root has %d inotify instances, and fs.inotify.max_user_instances is %d", used, most)}}
}

// noInotifyWatch finds that root is at the limit: the kernel then says that no space is left.
// Source: inotify(7), max_user_watches.
func noInotifyWatch(m *Machine) []Finding {
	most, ok := m.limit("max_user_watches", enoughWatches)
	if !ok {
		return nil
	}
	used := m.inotify().watches
	if used < most {
		return nil
	}
	return []Finding{{What: fmt.Sprintf("root has %d inotify watches, and fs.inotify.max_user_watches is %d", used, most)}}
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
		finding := Finding{
			Object: name,
			What:   name + " leads to " + to + ", which is not there",
		}
		resolved, known := m.Unit("systemd-resolved.service")
		if !strings.Contains(to, "systemd/resolve") || known && resolved.Load != "loaded" {
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

	return []Finding{{
		Object:  name,
		What:    name + " names no nameserver",
		Command: "cat " + name,
	}}
}
