// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A Mount is a mount that is read-only.
type Mount struct {
	Point string
	// Bind: the mount is read-only, and its file system is not, as a second mount of a folder is.
	Bind bool
}

// Remount is the command that makes a mount writable: mount(8).
func (m Mount) Remount() string {
	point := host.ShellWord(m.Point)
	if m.Bind {
		return "mount -o remount,bind,rw " + point
	}
	return "mount -o remount,rw " + point
}

// ReadOnlyMount is the mount that holds a file, if the machine has it read-only for all its
// processes; ok is false if it has not, or if that is not known. Process 1 has the
// machine's mounts.
func ReadOnlyMount(name string) (m Mount, ok bool) {
	if real, err := filepath.EvalSymlinks(filepath.Dir(name)); err == nil {
		name = filepath.Join(real, filepath.Base(name))
	}
	table, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil {
		return Mount{}, false
	}
	return readOnlyMount(string(table), name)
}

// unescape returns a path as it is: the kernel writes space, tab, newline and backslash in octal.
// Source: getmntent(3).
func unescape(field string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(field)
}

// readOnlyMount reads a table of proc_pid_mountinfo(5): the fifth field is the mount point, the
// sixth its options; after "-" come type, source and the options of the file system.
func readOnlyMount(table, name string) (m Mount, ok bool) {
	isReadOnly := func(options string) bool {
		return slices.Contains(strings.Split(options, ","), "ro")
	}

	for line := range strings.Lines(table) {
		mount, system, _ := strings.Cut(line, " - ")
		own := strings.Fields(mount)
		of := strings.Fields(system)
		if len(own) < 6 || len(of) < 3 {
			continue
		}

		point := unescape(own[4])
		holds := name == point || strings.HasPrefix(name, strings.TrimSuffix(point, "/")+"/")
		if !holds || len(point) < len(m.Point) {
			continue
		}
		whole := isReadOnly(of[2])
		ok = whole || isReadOnly(own[5])
		m = Mount{Point: point, Bind: ok && !whole}
	}

	return m, ok
}
