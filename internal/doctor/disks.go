// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
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
	if line := lastLineWith(m.Log(), "): Filesystem has been shut down", "): Shutting down filesystem", "Please unmount the filesystem and rectify"); line != "" && len(found) == 0 {
		found = append(found, Finding{What: "the kernel shut a file system down: " + line})
	}
	return found
}
