// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenRoot opens the folder that is "/" for the machine, by its absolute path, once and for all.
//
// Where it lies is the user's word, links on the way included, but only the user's and root's: who may write in a folder on the
// way could put a link there that leads to any other tree. The kernel refuses such links in sticky folders only
// (fs.protected_symlinks: proc_sys_fs(5), may_follow_link in fs/namei.c). What else lies in a folder where others may write is
// theirs to name; to refuse that as well would refuse "sudo gpuadm --root image" in a home.
func OpenRoot(abs string) (RealDisk, error) {
	fd, err := OpenAt(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	w := rootWalk{at: realFolder(fd), path: "/", rest: Parts(abs)}
	for len(w.rest) > 0 {
		if err := w.step(); err != nil {
			w.at.Close()
			return -1, err
		}
	}
	return RealDisk(w.at), nil
}

// rootWalk is the way to a root folder, so far.
type rootWalk struct {
	at   realFolder
	path string   // where that is
	rest []string // the parts that are left to go
	hops int      // links so far
}

// step goes over one part: a folder or a link.
func (w *rootWalk) step() error {
	part := w.rest[0]
	w.rest = w.rest[1:]
	next, err := w.at.Folder(part)
	if err == unix.ENOTDIR {
		return w.link(part)
	}
	if err != nil {
		return err
	}
	w.enter(next.(realFolder), part)
	return nil
}

func (w *rootWalk) enter(next realFolder, part string) {
	w.at.Close()
	w.at, w.path = next, path.Join(w.path, part)
}

// link goes over a link. It is opened, so that what is asked for its owner is what is followed: fstat(2) and readlinkat(2) with
// an empty name take such a descriptor (open(2), O_PATH; Linux 2.6.39, commit 65cfc6722361).
func (w *rootWalk) link(part string) error {
	fd, err := OpenAt(int(w.at), part, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	link := realFolder(fd)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR { // exchanged meanwhile
		w.enter(link, part)
		return nil
	}
	defer link.Close()
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return unix.ENOTDIR
	}
	if w.hops++; w.hops > MaxHops {
		return unix.ELOOP
	}
	if uid := int(st.Uid); uid != 0 && uid != unix.Geteuid() {
		name := path.Join(w.path, part)
		return fmt.Errorf("user %d owns the link %s, and could make it lead elsewhere: name the folder that you mean", uid, name)
	}
	var fs unix.Statfs_t
	if err := RetryEINTR(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return err
	}
	if fs.Type == unix.PROC_SUPER_MAGIC {
		// /proc/1/root and /proc/self/fd/3 lead to more than their text says, and only the kernel swaps names there: proc(5).
		next, err := OpenAt(int(w.at), part, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err == nil {
			w.enter(realFolder(next), part)
		}
		return err
	}
	target, err := link.Readlink("")
	if err != nil {
		return err
	}
	if strings.HasPrefix(target, "/") {
		top, err := OpenAt(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		w.at.Close()
		w.at, w.path = realFolder(top), "/"
	}
	w.rest = append(Parts(target), w.rest...)
	return nil
}
