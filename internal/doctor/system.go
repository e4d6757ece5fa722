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

// enoughInstances is a limit that no node reaches: what operators raise it to.
const enoughInstances = 8192

// noInotifyInstance counts root's inotify instances, in containers too, where the limit is as low as the
// kernel's default: at the limit no daemon starts that watches a folder. Sources: inotify(7),
// max_user_instances; proc_pid_fd(5), anon_inode.
func noInotifyInstance(m *Machine) []Finding {
	text, _ := m.text("/proc/sys/fs/inotify/max_user_instances")
	most, err := strconv.Atoi(text)
	pids, _ := m.View.ReadDir("/proc")
	if err != nil || most >= enoughInstances {
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
