// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io/fs"
	"math"
	"path"

	"golang.org/x/sys/unix"
)

// Room is View's.
func (l *live) Room(name string) (Room, error) { return roomFor(l.Files, name) }

// Room is View's.
func (f *folder) Room(name string) (Room, error) { return roomFor(f.Files, name) }

// roomFor asks the file system of the nearest folder that is there.
func roomFor(f *Files, name string) (Room, error) {
	for ; ; name = path.Dir(name) {
		room, err := f.roomAt(name)
		if err == nil {
			return room, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || name == "/" {
			return Room{}, fail("see how much room is left for", name, err)
		}
	}
}

// roomAt asks by a descriptor, never by a path: fstatfs(2) takes one that is open only as a place since Linux 3.12 (its "vfs: allow
// O_PATH file descriptors for fstatfs()"; open(2), O_PATH). What root may use is all that is free, the part kept for it included.
func (f *Files) roomAt(name string) (Room, error) {
	at, err := f.walk(name, true)
	if err != nil {
		return Room{}, err
	}
	defer at.dir.Close()
	dir, err := at.dir.Folder(at.name)
	if errors.Is(err, unix.ENOTDIR) { // a file
		dir, err = at.dir.Folder(".")
	}
	if err != nil {
		return Room{}, err
	}
	defer dir.Close()
	var s unix.Statfs_t
	if err := retryEINTR(func() error { return unix.Fstatfs(int(dir.(realFolder)), &s) }); err != nil {
		return Room{}, err
	}
	room := Room{Bytes: s.Bfree * uint64(s.Bsize), Files: s.Ffree}
	if s.Files == 0 { // btrfs
		room.Files = math.MaxUint64
	}
	return room, nil
}
