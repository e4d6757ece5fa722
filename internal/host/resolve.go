// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

// maxHops is how many links one path may lead over, as in Linux: path_resolution(7).
const maxHops = 40

// place is where a path leads: a name in an open folder.
type place struct {
	dir  Folder
	name string // one part; "." for the root itself; of reach a path
	path string // the whole path, free of links; of reach as it was asked for
	of   *Files // of reach, to find for an error where the path led

	looked bool // Lstat has been asked already, and said this
	info   Info
	err    error
}

// lstat is the folder's Lstat of the name.
func (p place) lstat() (Info, error) {
	if p.looked {
		return p.info, p.err
	}
	return p.dir.Lstat(p.name)
}

// step is one folder on the way down.
type step struct {
	dir  Folder
	name string
}

// way is the folders from the root to where a walk has come.
type way []step

// up leaves the innermost folder; the root's parent is the root.
func (w *way) up() {
	if last := len(*w) - 1; last > 0 {
		(*w)[last].dir.Close()
		*w = (*w)[:last]
	}
}

func (w way) path() string {
	p := "/"
	for _, s := range w[1:] {
		p = path.Join(p, s.name)
	}
	return p
}

// end closes all folders but the innermost.
func (w way) end(name string) place {
	for _, s := range w[:len(w)-1] {
		s.dir.Close()
	}
	return place{dir: w[len(w)-1].dir, name: name, path: path.Join(w.path(), name)}
}

// walk finds where a path leads as the machine's own kernel would: absolute links start at the root again and
// ".." stops there. The last part is followed if it is a link and follow says so; it need not exist.
// Links in /proc that lead to more than their text says are followed by their text, so not out of the root.
// The caller closes the place's folder.
func (f *Files) walk(name string, follow bool) (place, error) {
	if !strings.HasPrefix(name, "/") {
		return place{}, errors.New("the path is not absolute")
	}
	if at, err := f.jump(name, follow); !errors.Is(err, errWalk) {
		return at, err
	}
	root, err := f.disk.Root()
	if err != nil {
		return place{}, err
	}
	w := way{{root, ""}}
	fail := func(err error) (place, error) {
		for _, s := range w {
			s.dir.Close()
		}
		return place{}, err
	}
	hops := 0
	for rest := parts(name); ; {
		here := w[len(w)-1].dir
		if len(rest) == 0 { // the path ended in the current folder: "/", "x/..", a link to one of these
			if len(w) == 1 {
				return w.end("."), nil
			}
			last := w[len(w)-1].name
			w.up()
			return w.end(last), nil
		}
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			w.up()
			continue
		}
		if len(rest) > 0 {
			next, err := here.Folder(part)
			if err == nil {
				w = append(w, step{next, part})
				continue
			}
			if !errors.Is(err, syscall.ENOTDIR) {
				return fail(err)
			}
		} else if !follow {
			return w.end(part), nil
		}
		target, err := here.Readlink(part)
		switch {
		case errors.Is(err, syscall.EINVAL) && len(rest) > 0: // no link and no folder
			return fail(syscall.ENOTDIR)
		case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOENT) && len(rest) == 0:
			return w.end(part), nil
		case err != nil:
			return fail(err)
		}
		if hops++; hops > maxHops {
			return fail(syscall.ELOOP)
		}
		if strings.HasPrefix(target, "/") {
			for len(w) > 1 {
				w.up()
			}
		}
		rest = append(parts(target), rest...)
	}
}

// reach is walk for what is only read, in one call where the kernel can do it all. Its path may have links in it. What lies in /proc is
// walked to, where some links lead to other than what they say.
func (f *Files) reach(name string, follow bool) (place, error) {
	disk, ok := f.disk.(wholeDisk)
	if !ok || name == "/" || !clean(name) || strings.HasPrefix(name+"/", "/proc/") {
		return f.walk(name, follow)
	}
	to := place{dir: disk.Whole(), name: "." + name, path: name, of: f}
	if follow {
		to.looked = true
		if to.info, to.err = to.dir.Lstat(to.name); to.err == nil && to.info.Mode&fs.ModeSymlink != 0 {
			return f.walk(name, follow) // to open it would fail
		}
	}
	return to, nil
}

// errWalk says that a path has to be walked.
var errWalk = errors.New("internal error: this path was to be walked")

// jump is walk in two calls, for a path without links on a disk that can do that. Most paths are: gathering the facts resolves
// a few hundred of them, five parts each.
func (f *Files) jump(name string, follow bool) (place, error) {
	if name == "/" || !clean(name) {
		return place{}, errWalk
	}
	folder, last := path.Dir(name), path.Base(name)
	dir, folder, err := f.deep(folder)
	if err != nil {
		return place{}, err
	}
	to := place{dir: dir, name: last, path: path.Join(folder, last)}
	if follow {
		i, err := dir.Lstat(last)
		if err == nil && i.Mode&fs.ModeSymlink != 0 || err != nil && !errors.Is(err, syscall.ENOENT) {
			dir.Close()
			return place{}, errWalk
		}
		to.looked, to.info, to.err = true, i, err
	}
	return to, nil
}

// clean says that a path is absolute and the shortest of its name, as deepDisk takes it.
func clean(name string) bool { return strings.HasPrefix(name, "/") && path.Clean(name) == name }

// deep opens a folder in one call, where the disk can do that and no link is on the way, or only as its first part. It returns too what
// the path is without that link.
func (f *Files) deep(name string) (Folder, string, error) {
	disk, ok := f.disk.(deepDisk)
	if !ok || !clean(name) {
		return nil, name, errWalk
	}
	return straight(f, name, disk.Deep)
}

// deepLstat describes what a path leads to, links not followed but for the first part, in few calls where deep can.
func (f *Files) deepLstat(name string) (Info, error) {
	disk, ok := f.disk.(deepStater)
	if !ok || !clean(name) {
		return Info{}, errWalk
	}
	i, _, err := straight(f, name, disk.DeepLstat)
	return i, err
}

// straight goes down a path by a disk's call for one without links.
func straight[T any](f *Files, name string, down func(name string) (T, error)) (found T, at string, err error) {
	if found, err = down(name); errors.Is(err, syscall.ELOOP) {
		if direct := f.direct(name); direct != "" {
			name = direct
			found, err = down(name)
		}
	}
	if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENOTDIR) {
		err = errWalk
	}
	return found, name, err
}

// direct is a clean path with its first part's link followed, as walk follows it; "" where that part is no link, or leads to a path that
// is not clean. Most systems have /lib as a link to usr/lib, and the modules of a kernel are a dozen walks of eight parts each.
func (f *Files) direct(name string) string {
	top, rest, below := strings.Cut(name[1:], "/")
	if !below {
		return ""
	}
	root, err := f.disk.Root()
	if err != nil {
		return ""
	}
	defer root.Close()
	target, err := root.Readlink(top)
	if to := "/" + strings.TrimPrefix(target, "/") + "/" + rest; err == nil && clean(to) {
		return to
	}
	return ""
}

// parts splits a path; ".." stays, since what it means depends on links.
func parts(name string) []string {
	var all []string
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			all = append(all, part)
		}
	}
	return all
}
