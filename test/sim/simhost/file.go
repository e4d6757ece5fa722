// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"io"
	"io/fs"
	"maps"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// file is an open file, or a folder opened for its attributes.
type file struct {
	d   disk
	ino *inode
	off int64
}

// errUnread is the error of a file with content that was left out when the node was recorded. That
// is a limit of the record, so it answers to fs.ErrInvalid like a file that nothing can read.
var errUnread unread

type unread struct{}

func (unread) Error() string { return "its content was not recorded" }

func (unread) Is(target error) bool { return target == fs.ErrInvalid }

func (f *file) Stat() (i host.Info, err error) {
	err = f.d.look(func() error { i = f.ino.info(); return nil })
	return i, err
}

func (f *file) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.off)
	f.off += int64(n)
	return n, err
}

func (f *file) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.d.look(func() error {
		switch {
		case f.ino.mode.IsDir():
			return syscall.EISDIR
		case f.ino.unread:
			return errUnread
		case off >= int64(len(f.ino.data)):
			return io.EOF
		}

		n = copy(p, f.ino.data[off:])
		return nil
	})
	return n, err
}

// Write writes at the end: files are new or opened to append.
func (f *file) Write(p []byte) (int, error) {
	err := f.change(func() error {
		if f.ino.unread {
			return errUnread
		}
		f.ino.data = append(f.ino.data[:len(f.ino.data):len(f.ino.data)], p...)
		f.ino.mtime = time.Time{}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// change is one touch of the file itself.
func (f *file) change(do func() error) error {
	return f.d.touch(func() error {
		if err := do(); err != nil {
			return err
		}
		f.ino.ctime = f.d.n.now
		if f.d.raw {
			f.ino.sync()
		}
		return nil
	})
}

// attr is one touch of the file's attributes.
func (f *file) attr(do func()) error {
	return f.change(func() error {
		if err := f.ino.locked(); err != nil {
			return err
		}
		f.ino.mtime = f.ino.modified()
		do()
		return nil
	})
}

func (f *file) Chown(uid, gid int) error {
	return f.attr(func() {
		f.ino.uid = uid
		f.ino.gid = gid
		if !f.ino.mode.IsDir() {
			f.ino.mode &^= fs.ModeSetuid | fs.ModeSetgid // chown(2)
		}
	})
}

func (f *file) Chmod(mode fs.FileMode) error {
	return f.attr(func() { f.ino.mode = f.ino.mode.Type() | mode&^fs.ModeType })
}

func (f *file) Xattrs() (all map[string]string, err error) {
	err = f.d.look(func() error { all = maps.Clone(f.ino.xattrs); return nil })
	return all, err
}

func (f *file) SetXattr(name, value string) error {
	return f.attr(func() {
		x := maps.Clone(f.ino.xattrs) // the synced ones share the old map
		if x == nil {
			x = map[string]string{}
		}
		x[name] = value
		f.ino.xattrs = x
	})
}

func (f *file) RemoveXattr(name string) error {
	if strings.HasPrefix(name, "security.") && name != "security.capability" {
		return syscall.EACCES // as SELinux answers
	}
	return f.attr(func() {
		x := maps.Clone(f.ino.xattrs)
		delete(x, name)
		f.ino.xattrs = x
	})
}

func (f *file) Sync() error {
	return f.d.touch(func() error { f.ino.sync(); f.d.n.syncs++; return nil })
}

func (f *file) Close() error { return nil }
