// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
)

// MaxHops is how many links one path may lead over, as in Linux: path_resolution(7).
const MaxHops = 40

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

// toRoot leaves all folders but the root.
func (w *way) toRoot() {
	for len(*w) > 1 {
		w.up()
	}
}

// inner is the innermost folder.
func (w way) inner() Folder { return w[len(w)-1].dir }

// close closes all folders.
func (w way) close() {
	for _, s := range w {
		s.dir.Close()
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
	return place{
		dir:  w.inner(),
		name: name,
		path: path.Join(w.path(), name),
	}
}

// endHere ends a path that leads to the innermost folder: "/", "x/..", a link to one of these.
func (w way) endHere() place {
	last := w[len(w)-1].name
	if len(w) == 1 {
		return w.end(".")
	}
	w.up()
	return w.end(last)
}

// walk finds where a path leads as the machine's own kernel would: absolute links start at the root
// again and ".." stops there. The last part is followed if it is a link and follow says so; it need
// not exist. For links in /proc that lead to files that their text does not name, walk follows the
// text, and so stays in the root. The caller closes the place's folder.
func (f *Files) walk(name string, follow bool) (place, error) {
	if !strings.HasPrefix(name, "/") {
		return place{}, errors.New("the path is not absolute")
	}

	root, err := f.disk.Root()
	if err != nil {
		return place{}, err
	}

	w := way{{root, ""}}
	to, err := w.down(Parts(name), follow)
	if err != nil {
		w.close()
	}
	return to, err
}

// down walks from the root along the parts of a path.
func (w *way) down(rest []string, follow bool) (place, error) {
	hops := 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		isLast := len(rest) == 0

		if part == ".." {
			w.up()
			continue
		}
		if isLast && !follow {
			return w.end(part), nil
		}
		if !isLast {
			entered, err := w.enter(part)
			if err != nil {
				return place{}, err
			}
			if entered {
				continue
			}
		}

		target, err := w.inner().Readlink(part)
		isLink := !errors.Is(err, syscall.EINVAL)
		isMissing := errors.Is(err, syscall.ENOENT)
		switch {
		case isLast && (!isLink || isMissing):
			return w.end(part), nil
		case !isLink: // and not a folder either
			return place{}, syscall.ENOTDIR
		case err != nil:
			return place{}, err
		}

		hops++
		if hops > MaxHops {
			return place{}, syscall.ELOOP
		}
		if strings.HasPrefix(target, "/") {
			w.toRoot()
		}
		rest = append(Parts(target), rest...)
	}

	return w.endHere(), nil
}

// enter goes into a folder; entered is false if the name is something else, such as a link.
func (w *way) enter(name string) (entered bool, err error) {
	next, err := w.inner().Folder(name)
	if errors.Is(err, syscall.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, err
	}

	*w = append(*w, step{next, name})
	return true, nil
}

// reach is walk for a file that is only read: the kernel follows the path in one call where it can.
// The place's path may have links in it. reach walks to what is in /proc: some links there lead to
// files that their text does not name.
func (f *Files) reach(name string, follow bool) (place, error) {
	disk, ok := f.whole(name)
	if !ok {
		return f.walk(name, follow)
	}

	to := place{
		dir:  disk.Whole(),
		name: "." + name,
		path: name,
		of:   f,
	}
	if !follow {
		return to, nil
	}

	to.looked = true
	to.info, to.err = to.dir.Lstat(to.name)
	isLink := to.err == nil && to.info.Mode&fs.ModeSymlink != 0
	if isLink || errors.Is(to.err, syscall.ELOOP) { // to open it would fail
		return f.walk(name, follow)
	}
	return to, nil
}

// whole returns the disk, if the kernel can follow a path there as walk does.
func (f *Files) whole(name string) (wholeDisk, bool) {
	disk, ok := f.disk.(wholeDisk)
	if !ok || name == "/" || !isClean(name) {
		return nil, false
	}
	return disk, !strings.HasPrefix(name+"/", "/proc/")
}

// isClean reports whether a path is absolute and has no part that path.Clean drops, as wholeDisk
// takes it.
func isClean(name string) bool {
	return strings.HasPrefix(name, "/") && path.Clean(name) == name
}

// Parts splits a path; ".." stays, since its meaning depends on links.
func Parts(name string) []string {
	var all []string
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			all = append(all, part)
		}
	}

	return all
}

// Trusted is View's. The rule is sshd's StrictModes: each folder on the way is judged too, up to
// the root, and the sticky bit is not an excuse (safe_path in OpenSSH's misc.c; Dropbear walks the
// same way in checkpubkeyperms). Who owns a link does not count: what a link says cannot be
// changed, and only those who can write to its folder can replace it.
func (f *Files) Trusted(names ...string) error {
	var u host.Untrusted
	seen := map[string]host.Info{}
	for _, name := range names {
		for _, at := range f.trail(name, seen) {
			judge(&u, name, at, seen[at])
		}
		if u.Name == "" && len(u.Owners)+len(u.Modes) > 0 {
			u.Name = name
		}
	}

	if u.Name == "" {
		return nil
	}

	return &u
}

// judge adds what makes a file or a folder on the way to a name untrusted. It does not judge other
// kinds: ReadFile refuses them, and to systemd they mask a unit, so /dev/null must stay as it is.
func judge(u *host.Untrusted, on, name string, i host.Info) {
	if !i.Mode.IsRegular() && !i.Mode.IsDir() {
		return
	}
	if i.UID != 0 {
		addOnce(&u.Owners, host.Fault{
			Why:  fmt.Sprintf("user %d owns", i.UID),
			Name: name,
			For:  on,
		})
	}

	switch {
	case i.Mode&0o002 != 0:
		addOnce(&u.Modes, host.Fault{
			Why:  "all users can write to",
			Name: name,
			For:  on,
		})
	case i.Mode&0o020 != 0:
		addOnce(&u.Modes, host.Fault{
			Why:  "its group can write to",
			Name: name,
			For:  on,
		})
	}
}

// addOnce adds a fault once: several names lead through the same folders.
func addOnce(all *[]host.Fault, f host.Fault) {
	same := func(other host.Fault) bool { return other.Why == f.Why && other.Name == f.Name }
	if !slices.ContainsFunc(*all, same) {
		*all = append(*all, f)
	}
}

// trail returns all folders that a name leads through, over links, and the file at its end. It
// keeps in seen what they are. It ends where nothing exists, or where the caller may not look: to
// read the file fails with that error.
func (f *Files) trail(name string, seen map[string]host.Info) (trail []string) {
	at := "/"
	hops := 0
	rest := append([]string{"."}, Parts(name)...)
	for len(rest) > 0 {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		i, ok := seen[next]
		if !ok {
			var err error
			i, err = f.Plain(next)
			if err != nil {
				return trail
			}
		}

		if i.Mode&fs.ModeSymlink == 0 {
			seen[next] = i
			trail = append(trail, next)
			at = next
			continue
		}

		target, err := f.Readlink(next)
		hops++
		if err != nil || hops > MaxHops {
			return trail
		}
		if strings.HasPrefix(target, "/") {
			at = "/"
		}
		rest = append(Parts(target), rest...)
	}

	return trail
}

// Plain is Lstat without the extended attributes, which need the file opened.
func (f *Files) Plain(name string) (host.Info, error) {
	at, err := f.reach(name, false)
	if err != nil {
		return host.Info{}, err
	}
	defer at.dir.Close()
	return at.lstat()
}
