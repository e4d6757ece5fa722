// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// holder finds a living process that holds the flock on the file that fd has open.
//
// The number in /proc/locks is that of who took the lock, who may be dead while a child lives on with it. So all open files
// of all processes are searched for this one, and their fdinfo tells whether the lock is held through it: proc(5).
func holder(fd int) *Busy {
	var want unix.Stat_t
	if err := unix.Fstat(fd, &want); err != nil {
		return &Busy{}
	}
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && holds(pid, &want) {
			found = append(found, pid)
		}
	}
	if len(found) == 0 {
		return &Busy{} // another user's, or gone meanwhile
	}
	pid := slices.Min(found) // of a family the eldest, but for a wrapped counter
	return &Busy{PID: pid, Command: command(pid)}
}

func holds(pid int, want *unix.Stat_t) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		about, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, filepath.Base(fd)))
		if !bytes.Contains(about, []byte("FLOCK")) {
			continue
		}
		var st unix.Stat_t // only of locked files: stat(2) may hang on a dead network file system
		if unix.Stat(fd, &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino {
			return true
		}
	}
	return false
}

// command is a process' argv as ps shows it.
func command(pid int) string {
	argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(argv), "\x00", " "))
}
