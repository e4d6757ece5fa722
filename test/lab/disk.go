// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/must"
)

// Names in a host's folder, of a host with Options.Disk.
const (
	diskImage = "disk.img" // ext4
	diskMount = "disk"     // where it is mounted
)

// diskSize is the room on a host's own disk; the file has holes.
const diskSize = 6 << 30

// diskMounted are ext4's mount options. Nothing reaches the disk but what a program asks for with
// fsync: no commit by the clock, and no data written ahead of a rename (ext4(5): commit,
// auto_da_alloc).
const diskMounted = "loop,commit=86400,noauto_da_alloc,noinit_itable"

// Picture is a copy of a host's own disk as a power cut at that moment would leave it.
type Picture struct {
	image string
	outer string // what is beside the disk: the GPUs' state
}

// Kept says how much of what was written and not synced a picture has.
type Kept int

const (
	// Synced: what a program has synced, and nothing after that.
	Synced Kept = iota
	// Named: also each name, mode and link, but no content that was not synced: what ext4 holds if
	// its journal was committed by the clock, or for another process's fsync.
	Named
)

func (k Kept) String() string {
	if k == Named {
		return "names without contents"
	}
	return "what was synced"
}

// makeDisk makes the disk that the host's own layer lies on, and mounts it.
func (m *Machine) makeDisk(ctx context.Context) error {
	if err := os.WriteFile(m.path(diskImage), nil, 0o600); err != nil {
		return fmt.Errorf("cannot make the host's disk: %w", err)
	}
	if err := os.Truncate(m.path(diskImage), diskSize); err != nil {
		return fmt.Errorf("cannot make the host's disk: %w", err)
	}
	_, err := parts.Run(ctx, "", nil, "mkfs.ext4", "-q", "-F", "-m", "0", "-N", "100000", "-J", "size=16",
		"-E", "lazy_itable_init=1,lazy_journal_init=1", m.path(diskImage))
	if err != nil {
		return fmt.Errorf("cannot make the host's disk: %w", err)
	}

	if err := m.mountDisk(); err != nil {
		return err
	}
	for _, folder := range []string{"upper", "work"} {
		err := os.Mkdir(m.path(filepath.Join(diskMount, folder)), 0o755)
		if err == nil {
			err = os.Remove(m.path(folder))
		}
		if err == nil {
			err = os.Symlink(filepath.Join(diskMount, folder), m.path(folder))
		}
		if err != nil {
			return fmt.Errorf("cannot make the host's disk: %w", err)
		}
	}

	return nil
}

func (m *Machine) mountDisk() error {
	if err := os.MkdirAll(m.path(diskMount), 0o755); err != nil {
		return fmt.Errorf("cannot mount the host's disk: %w", err)
	}
	return mountImage(m.path(diskImage), m.path(diskMount))
}

func mountImage(image, place string) error {
	_, err := parts.Run(context.Background(), "", nil, "mount", "-t", "ext4", "-o", diskMounted, image, place)
	if err != nil {
		return fmt.Errorf("cannot mount the host's disk: %w", err)
	}
	return nil
}

// Picture copies the host's own disk to a name that no other picture has. To be called while
// Touches holds the program.
func (h *Host) Picture(name string, kept Kept) Picture {
	h.t.Helper()
	if kept == Named {
		must.OK(h.t, commit(h.path(diskMount)))
	}

	p := Picture{image: h.path(name + ".img"), outer: h.path(name + ".outer")}
	for {
		before := must.Get(os.Stat(h.path(diskImage)))(h.t)
		must.OK(h.t, copyHoles(h.path(diskImage), p.image))
		after := must.Get(os.Stat(h.path(diskImage)))(h.t)
		if before.ModTime().Equal(after.ModTime()) { // else another process has synced meanwhile
			break
		}
	}

	must.OK(h.t, h.copyOuter(p.outer))
	return p
}

// commit commits the file system's journal, and writes no data of other files: ext4 gives these
// their blocks later (ext4(5): delalloc).
func commit(disk string) error {
	name := filepath.Join(disk, "commit")
	text := time.Now().Format(time.RFC3339Nano)
	file, err := os.Create(name)
	if err == nil {
		_, err = file.WriteString(text)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return fmt.Errorf("cannot commit the journal of the host's disk: %w", err)
	}
	return file.Close()
}

// copyHoles copies a file's data, and leaves its holes.
func copyHoles(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	// A loop device of the old file may still be there, with its contents in memory: mount(8) would
	// take it again for a file of the same number.
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	if err := out.Truncate(diskSize); err != nil {
		return err
	}

	for end := int64(0); ; {
		begin, err := unix.Seek(int(in.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // no data after this
		}
		if err == nil {
			end, err = unix.Seek(int(in.Fd()), begin, unix.SEEK_HOLE)
		}
		if err == nil {
			_, err = out.Seek(begin, io.SeekStart)
		}
		if err == nil {
			_, err = io.Copy(out, io.NewSectionReader(in, begin, end-begin))
		}
		if err != nil {
			return fmt.Errorf("cannot copy %s: %w", from, err)
		}
	}
}

// OuterFile is a file of the host that lies on none of its disks: what a device keeps in its own memory.
const OuterFile = "/var/lib/containerd/device"

func (m *Machine) outer() string { return m.path("state/device") }

func (m *Machine) copyOuter(to string) error {
	data, err := os.ReadFile(m.outer())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o666)
}

// Key tells what a picture holds, but for logs and caches: two with the same key are of the same
// machine. It is read with the journal replayed, as a boot reads it.
func (h *Host) Key(p Picture) string {
	h.t.Helper()
	place := h.t.TempDir()
	must.OK(h.t, mountImage(p.image, place))
	defer func() { must.OK(h.t, unmount(place)) }()

	sum := sha256.New()
	upper := filepath.Join(place, "upper")
	must.OK(h.t, filepath.WalkDir(upper, func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(file, upper)
		if slices.Contains(restless(), name) {
			return fs.SkipDir
		}
		line, err := described(file)
		fmt.Fprintln(sum, name, line)
		return err
	}))
	if data, err := os.ReadFile(p.outer); err == nil {
		sum.Write(data)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// described is all that can be said of a file but its times. Its digest is read, since files of
// two pictures share number and time.
func described(file string) (string, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return "", err
	}
	stat, _ := info.Sys().(*syscall.Stat_t)
	line := fmt.Sprintf("%v %d:%d %d", info.Mode(), stat.Uid, stat.Gid, stat.Rdev)
	switch {
	case info.Mode().IsRegular():
		data, err := os.ReadFile(file)
		return fmt.Sprintf("%s %x", line, sha256.Sum256(data)), err
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(file)
		return line + " " + to, err
	}

	return line, nil
}

// Insert ends all processes of the host, as a power cut does, gives it a picture as its disk, and
// boots it.
func (h *Host) Insert(p Picture) {
	h.t.Helper()
	must.OK(h.t, h.off())
	must.OK(h.t, unmount(h.path("root")))
	must.OK(h.t, unmount(h.path(diskMount)))
	must.OK(h.t, copyHoles(p.image, h.path(diskImage)))
	if data, err := os.ReadFile(p.outer); err == nil {
		must.OK(h.t, os.WriteFile(h.outer(), data, 0o666))
	}
	must.OK(h.t, h.mountDisk())

	layers := must.Get(layersOf(h.Options))(h.t)
	must.OK(h.t, h.mount(layers))
	h.again()
}

// Drop removes pictures.
func (h *Host) Drop(pictures ...Picture) {
	h.t.Helper()
	for _, p := range pictures {
		_ = os.Remove(p.image)
		_ = os.Remove(p.outer)
	}
}

// Distinct keeps the first of the pictures that hold the same machine, and removes the others.
func (h *Host) Distinct(pictures map[int]Picture) map[int]Picture {
	h.t.Helper()
	seen := map[string]bool{}
	left := map[int]Picture{}
	for _, n := range slices.Sorted(maps.Keys(pictures)) {
		key := h.Key(pictures[n])
		if seen[key] {
			h.Drop(pictures[n])
			continue
		}
		seen[key] = true
		left[n] = pictures[n]
	}

	return left
}

// File reads a file of a picture, "" if it has none. It must be one that the host itself wrote.
func (h *Host) File(p Picture, name string) string {
	h.t.Helper()
	place := h.t.TempDir()
	must.OK(h.t, mountImage(p.image, place))
	defer func() { must.OK(h.t, unmount(place)) }()

	text, err := os.ReadFile(filepath.Join(place, "upper", name))
	must.That(h.t, err == nil || errors.Is(err, fs.ErrNotExist), "cannot read %s of a picture: %v", name, err)
	return string(text)
}

// Sync writes all that the host's disk has to hold.
func (h *Host) Sync() {
	h.t.Helper()
	disk := must.Get(os.Open(h.path(diskMount)))(h.t)
	defer func() { _ = disk.Close() }()
	must.OK(h.t, unix.Syncfs(int(disk.Fd())))
}

// Settled is a picture of all that was written, synced or not.
func (h *Host) Settled(name string) Picture {
	h.t.Helper()
	h.Sync()
	return h.Picture(name, Synced)
}
