// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io/fs"
	"math"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Room is View's.
func (l *live) Room(name string) (Room, error) { return roomFor(l.Files, "/", name) }

// Room is View's.
func (f *folder) Room(name string) (Room, error) { return roomFor(f.Files, f.root, name) }

// roomFor asks the file system of the nearest folder that is there: statfs(2). What root may use is all that is free, the
// part kept for it included.
func roomFor(f *Files, root, name string) (Room, error) {
	for ; ; name = path.Dir(name) {
		at, err := f.Resolve(name)
		if err == nil {
			var s unix.Statfs_t
			err = unix.Statfs(filepath.Join(root, at), &s)
			if err == nil {
				room := Room{Bytes: s.Bfree * uint64(s.Bsize), Files: s.Ffree}
				if s.Files == 0 { // btrfs
					room.Files = math.MaxUint64
				}
				return room, nil
			}
		}
		if !errors.Is(err, fs.ErrNotExist) || name == "/" {
			return Room{}, fail("see how much room is left for", name, err)
		}
	}
}
