// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// bytesNeeded returns how many bytes a folder must have left: with less, a package or a socket's
// folder cannot be written.
func bytesNeeded(folder string) uint64 {
	switch folder {
	case "/run":
		return 1 << 20
	case "/boot":
		return 16 << 20
	}
	return 64 << 20
}

// onReadOnly reports whether a folder is on a file system that is mounted read-only. The file
// system of an image is full by design, and another check finds a file system that the kernel
// made read-only.
func (m *Machine) onReadOnly(folder string) bool {
	mountPoint := ""
	readOnly := false
	for _, fields := range m.mounts("/proc/self/mounts") {
		holds := fields[1] == folder || fields[1] == "/"
		if holds && len(fields[1]) >= len(mountPoint) {
			mountPoint = fields[1]
			readOnly = isReadOnly(fields)
		}
	}

	return readOnly
}

func isReadOnly(fields []string) bool {
	options := strings.Split(fields[3], ",")
	return slices.Contains(options, "ro")
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

// lackingRoom returns one finding for each file system that lacks room: two folders with the same
// room are on one. lacks also says what is left.
func (m *Machine) lackingRoom(
	lacks func(folder string, room host.Room) (yes bool, left string),
) (found []Finding) {
	var seen []host.Room
	for _, folder := range m.growingFolders() {
		if m.onReadOnly(folder) {
			continue
		}
		room, err := m.View.Room(folder)
		if err != nil {
			m.cannotRead("room on "+folder, err)
			continue
		}

		yes, left := lacks(folder, room)
		if yes && !slices.Contains(seen, room) {
			finding := Finding{
				Object: folder,
				What:   folder + " has " + left + " left",
				Fix:    m.frees(folder, room),
			}
			if folder == "/boot" { // only packages write there
				finding.Part = "boot"
			}
			found = append(found, finding)
		}

		seen = append(seen, room)
	}

	return found
}

// growingFolders returns the folders that must take files. Those of the engines are their defaults:
// containerd's root, containers-storage.conf(5), dockerd's data-root.
func (m *Machine) growingFolders() []string {
	folders := []string{"/", "/run", "/var", "/boot", "/var/log/pods"}
	if kubelet := m.Basics().Kubelet; kubelet.Unit != "" {
		folders = append(folders, kubelet.Folder())
	}

	if images := m.imageFolder(); images != "" {
		folders = append(folders, images)
	}
	return folders
}

// imageFolder is the folder of the engine's images; "" where no engine is known.
func (m *Machine) imageFolder() string {
	engine, _, ok := m.engine()
	if !ok {
		return ""
	}
	switch engine.Name {
	case "containerd":
		return "/var/lib/containerd"
	case "crio":
		return "/var/lib/containers"
	case "docker":
		return "/var/lib/docker"
	}

	return ""
}

// frees says what can be removed from a file system; "" where the check says all there is to say.
func (m *Machine) frees(folder string, room host.Room) string {
	images := m.imageFolder()
	ofImages, err := m.View.Room(images)
	switch {
	case folder == "/boot" && m.Packages().packager == "dnf":
		return "remove kernels that are not needed: sudo dnf remove --oldinstallonly"
	case folder == "/boot" && m.Packages().packager == "zypper": // zypper(8), purge-kernels
		return "remove kernels that are not needed: sudo zypper purge-kernels"
	case folder == "/boot":
		return "remove kernels that are not needed: sudo apt-get autoremove --purge"
	case folder == "/run":
		return "find the program that fills it, and restart that program: the files are in memory"
	case images != "" && err == nil && ofImages == room:
		return "free room: remove logs and packages that are not needed, and unused images: sudo crictl rmi --prune; delete nothing by hand in the engine's folders"
	}

	return ""
}

func fullDisks(m *Machine) []Finding {
	found := m.lackingRoom(func(folder string, room host.Room) (bool, string) {
		return room.Bytes < bytesNeeded(folder), fmt.Sprintf("%d MiB", room.Bytes>>20)
	})
	for i, f := range found {
		const command = "df -h %[1]s && sudo du -xh --max-depth=2 %[1]s | sort -h | tail"
		found[i].Command = fmt.Sprintf(command, f.Object)
	}

	return found
}

func noInodes(m *Machine) []Finding {
	found := m.lackingRoom(func(_ string, room host.Room) (bool, string) {
		return room.Files < 64, fmt.Sprintf("%d inodes", room.Files)
	})
	for i, f := range found {
		const command = "df -i %[1]s && sudo du -x --inodes --max-depth=3 %[1]s | sort -n | tail"
		found[i].Command = fmt.Sprintf(command, f.Object)
	}

	return found
}

// isForReading reports whether a kind of file system is read-only by design, whatever fstab says: a
// CD's, an image's, and composefs, which mounts the root of an image as an overlay.
// Sources: mount(8); https://github.com/containers/composefs.
func isForReading(kind string) bool {
	return slices.Contains([]string{"iso9660", "squashfs", "erofs", "overlay"}, kind)
}

// readOnly compares the mounts with fstab(5). XFS does not become read-only, it shuts down, which
// only the log says.
func readOnly(m *Machine) (found []Finding) {
	writable := map[string]bool{}
	for _, fields := range m.mounts("/etc/fstab") {
		writable[path.Clean(fields[1])] = !isReadOnly(fields)
	}
	for _, fields := range m.mounts("/proc/self/mounts") {
		device := fields[0]
		folder := fields[1]
		kind := fields[2]
		if isReadOnly(fields) && writable[path.Clean(folder)] && !isForReading(kind) {
			found = append(found, Finding{
				Object: folder,
				What:   fmt.Sprintf("%s (%s on %s) is mounted read-only, and fstab wants it writable", folder, kind, device),
			})
		}
	}

	if len(found) > 0 {
		return found
	}

	shutdown := lastLineWith(m.Log(),
		"): Filesystem has been shut down",
		"): Shutting down filesystem",
		"Please unmount the filesystem and rectify")
	if shutdown == "" {
		return nil
	}
	return []Finding{{What: "the kernel shut a file system down: " + shutdown}}
}
