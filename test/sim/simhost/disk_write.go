// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host/files"
)

// change makes one change of names. It is durable when the folder is synced, not before.
func (f folder) change(c nameChange) {
	c.apply(f.ino.names)
	f.ino.pending = append(f.ino.pending, c)
	f.ino.ctime = f.d.n.now
	f.ino.mtime = time.Time{}
	for _, ino := range c {
		if ino == nil {
			continue
		}
		if !ino.ctime.IsZero() {
			ino.mtime = ino.modified()
		}
		ino.ctime = f.d.n.now
	}

	if f.d.raw {
		f.ino.sync()
	}
}

// make puts something new under a name that was free.
func (f folder) make(name string, ino *inode) error {
	return f.d.touch(func() error {
		switch {
		case f.ino.names[name] != nil || name == ".":
			return syscall.EEXIST
		case f.ino.readOnly:
			return syscall.EROFS
		case f.ino.chattr == "i":
			return syscall.EPERM
		}

		ino.kernel = f.ino.kernel
		// Of a file that is never synced its attributes at birth remain: an empty file, a folder
		// without names.
		ino.sync()
		f.change(nameChange{name: ino})
		return nil
	})
}

func (f folder) Create(name string) (files.File, error) {
	ino := &inode{attrs: attrs{mode: 0o600}}
	if err := f.make(name, ino); err != nil {
		return nil, err
	}
	return &file{d: f.d, ino: ino}, nil
}

func (f folder) Mkdir(name string) error {
	return f.make(name, &inode{
		attrs: attrs{mode: fs.ModeDir | 0o700},
		names: map[string]*inode{},
	})
}

func (f folder) Symlink(target, name string) error {
	if target == "" {
		return syscall.ENOENT // symlink(2)
	}
	return f.make(name, &inode{attrs: attrs{mode: fs.ModeSymlink | 0o777}, target: target})
}

// cannotRemove says why a name cannot be taken from its folder.
func (f folder) cannotRemove(ino *inode) error {
	if err := f.ino.locked(); err != nil {
		return err
	}
	if ino.mount {
		return syscall.EBUSY
	}
	return ino.locked()
}

func (f folder) Rename(from, to string, flags uint) error {
	return f.d.touch(func() error {
		ino, err := f.get(from)
		if err != nil {
			return err
		}
		old := f.ino.names[to]
		switch {
		case flags != 0 && f.d.n.plain:
			return syscall.EINVAL
		case flags == unix.RENAME_NOREPLACE && old != nil:
			return syscall.EEXIST
		case flags == unix.RENAME_EXCHANGE && old == nil:
			return syscall.ENOENT
		}

		if err := f.cannotRemove(ino); err != nil {
			return err
		}
		if old == nil {
			f.change(nameChange{from: nil, to: ino})
			return nil
		}
		if err := f.cannotRemove(old); err != nil {
			return err
		}
		if flags == unix.RENAME_EXCHANGE {
			f.change(nameChange{from: old, to: ino})
			return nil
		}

		switch {
		case old.mode.IsDir() && !ino.mode.IsDir():
			return syscall.EISDIR
		case !old.mode.IsDir() && ino.mode.IsDir():
			return syscall.ENOTDIR
		case len(old.names) > 0:
			return syscall.ENOTEMPTY
		}

		f.change(nameChange{from: nil, to: ino})
		return nil
	})
}

func (f folder) Unlink(name string) error { return f.remove(name, false) }

func (f folder) Rmdir(name string) error { return f.remove(name, true) }

func (f folder) remove(name string, dir bool) error {
	return f.d.touch(func() error {
		ino, err := f.get(name)
		switch {
		case err != nil:
			return err
		case name == ".":
			return syscall.EINVAL
		case ino.mode.IsDir() && !dir:
			return syscall.EISDIR
		case !ino.mode.IsDir() && dir:
			return syscall.ENOTDIR
		case len(ino.names) > 0:
			return syscall.ENOTEMPTY
		}

		if err := f.cannotRemove(ino); err != nil {
			return err
		}
		f.change(nameChange{name: nil})
		return nil
	})
}

func (f folder) Sync() error {
	return f.d.touch(func() error {
		f.ino.sync()
		f.d.n.syncs++
		return nil
	})
}
