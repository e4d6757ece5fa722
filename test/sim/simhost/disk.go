// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"io/fs"
	"maps"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// inode is a file, folder, link or device, and what of it is safe from a power cut.
type inode struct {
	attrs
	target string // of a link
	device host.Device
	unread bool  // its content was not recorded
	size   int64 // of content that was not recorded
	ctime  time.Time
	mtime  time.Time         // zero: its ctime
	names  map[string]*inode // of a folder

	chattr   string // "i", "a": chattr(1)
	readOnly bool   // on a read-only file system
	mount    bool   // a mount point
	kernel   bool   // of the kernel's file systems: /proc, /sys, /dev

	synced      attrs             // content and attributes as last synced
	syncedNames map[string]*inode // of a folder
	pending     []nameChange      // since then
}

// attrs is what a file's own sync makes durable.
type attrs struct {
	mode     fs.FileMode
	uid, gid int
	data     []byte            // never written to in place
	xattrs   map[string]string // neither
}

// nameChange is one change of a folder's names: what is at each name after it, nil for nothing.
type nameChange map[string]*inode

func (c nameChange) apply(names map[string]*inode) {
	for name, ino := range c {
		if ino == nil {
			delete(names, name)
		} else {
			names[name] = ino
		}
	}
}

// sync makes all of an inode durable.
func (i *inode) sync() {
	i.synced = i.attrs
	if i.names != nil {
		i.syncedNames = maps.Clone(i.names)
		i.pending = nil
	}
}

func (i *inode) info() host.Info {
	size := int64(len(i.data))
	switch {
	case i.unread:
		size = i.size
	case i.target != "":
		size = int64(len(i.target))
	case i.mode.IsDir():
		size = 4096
	}

	return host.Info{
		Mode:   i.mode,
		UID:    i.uid,
		GID:    i.gid,
		Size:   size,
		Ctime:  i.ctime,
		Mtime:  i.modified(),
		Chattr: i.chattr,
		Device: i.device,
	}
}

// locked says why an inode cannot be changed, writing at its end apart.
func (i *inode) locked() error {
	switch {
	case i.readOnly:
		return syscall.EROFS
	case i.chattr != "":
		return syscall.EPERM
	}
	return nil
}

// disk is the node's files as files.Disk. The raw one is for daemons and commands, who run within a
// touch: it counts nothing and all it writes is durable at once.
type disk struct {
	n   *Node
	raw bool
}

func (d disk) look(do func() error) error {
	if d.raw {
		return do()
	}
	return d.n.look(func() error { d.n.meddle(); return do() })
}

func (d disk) touch(do func() error) error {
	if d.raw {
		return do()
	}
	return d.n.touch(func() error { d.n.meddle(); return do() })
}

// Root is files.Disk's.
func (d disk) Root() (files.Folder, error) {
	var root folder
	err := d.look(func() error { root = folder{d, d.n.root}; return nil })
	return root, err
}

// folder is an open folder.
type folder struct {
	d   disk
	ino *inode
}

// get finds a name; the node is locked.
func (f folder) get(name string) (*inode, error) {
	if name == "." {
		return f.ino, nil
	}
	if ino := f.ino.names[name]; ino != nil {
		return ino, nil
	}
	if len(name) > 255 {
		return nil, syscall.ENAMETOOLONG
	}
	return nil, syscall.ENOENT
}

// looks runs a read of a name.
func (f folder) looks(name string, do func(*inode) error) error {
	return f.d.look(func() error {
		ino, err := f.get(name)
		if err != nil {
			return err
		}
		return do(ino)
	})
}

func (f folder) Folder(name string) (files.Folder, error) {
	var found files.Folder
	err := f.looks(name, func(ino *inode) error {
		if !ino.mode.IsDir() {
			return syscall.ENOTDIR
		}
		found = folder{f.d, ino}
		return nil
	})
	return found, err
}

func (f folder) Lstat(name string) (i host.Info, err error) {
	err = f.looks(name, func(ino *inode) error { i = ino.info(); return nil })
	return i, err
}

func (f folder) Readlink(name string) (target string, err error) {
	err = f.looks(name, func(ino *inode) error {
		if ino.mode&fs.ModeSymlink == 0 {
			return syscall.EINVAL
		}
		if ino.target == "" { // it was not recorded
			return syscall.EACCES
		}
		target = ino.target
		return nil
	})
	return target, err
}

func (f folder) Names() (names []string, err error) {
	err = f.d.look(func() error {
		for name := range f.ino.names {
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// Device is files.Folder's.
func (f folder) Device(name string) (d host.Device, err error) {
	err = f.looks(name, func(ino *inode) error {
		if ino.mode&fs.ModeSymlink != 0 {
			real, err := f.d.n.raw.Resolve(ino.target)
			if err != nil {
				return err
			}
			ino = f.d.n.root
			for part := range strings.SplitSeq(strings.Trim(real, "/"), "/") {
				if ino = ino.names[part]; ino == nil {
					return syscall.ENOENT
				}
			}
		}

		d = ino.device
		return nil
	})
	return d, err
}

func (f folder) Open(name string) (files.File, error) { return f.open(name, false) }

func (f folder) OpenAppend(name string) (files.File, error) { return f.open(name, true) }

func (f folder) open(name string, write bool) (files.File, error) {
	var found files.File
	err := f.looks(name, func(ino *inode) error {
		switch {
		case ino.mode&fs.ModeSymlink != 0:
			return syscall.ELOOP
		case ino.mode&(fs.ModeSocket|fs.ModeDevice) != 0:
			return syscall.ENXIO
		case write && ino.mode.IsDir():
			return syscall.EISDIR
		case write && ino.readOnly:
			return syscall.EROFS
		case write && ino.chattr == "i":
			return syscall.EPERM
		}

		found = &file{d: f.d, ino: ino}
		return nil
	})
	return found, err
}

func (f folder) Close() error { return nil }

// modified is when the content changed last.
func (i *inode) modified() time.Time {
	if i.mtime.IsZero() {
		return i.ctime
	}
	return i.mtime
}
