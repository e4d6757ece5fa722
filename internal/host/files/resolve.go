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
	fail := func(err error) (place, error) {
		for _, s := range w {
			s.dir.Close()
		}
		return place{}, err
	}

	hops := 0
	for rest := Parts(name); ; {
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
		if hops++; hops > MaxHops {
			return fail(syscall.ELOOP)
		}
		if strings.HasPrefix(target, "/") {
			for len(w) > 1 {
				w.up()
			}
		}
		rest = append(Parts(target), rest...)
	}
}

// reach is walk for what is only read, in one call where the kernel can do it all. Its path may
// have links in it. What lies in /proc is walked to: some links there lead to files that their text
// does not name.
func (f *Files) reach(name string, follow bool) (place, error) {
	disk, ok := f.whole(name)
	if !ok {
		return f.walk(name, follow)
	}

	to := place{dir: disk.Whole(), name: "." + name, path: name, of: f}
	if follow {
		to.looked = true
		to.info, to.err = to.dir.Lstat(to.name)
		if to.err == nil && to.info.Mode&fs.ModeSymlink != 0 || errors.Is(to.err, syscall.ELOOP) {
			return f.walk(name, follow) // to open it would fail
		}
	}
	return to, nil
}

// whole is the disk where the kernel can follow a path as walk does.
func (f *Files) whole(name string) (wholeDisk, bool) {
	disk, ok := f.disk.(wholeDisk)
	return disk, ok && name != "/" && clean(name) && !strings.HasPrefix(name+"/", "/proc/")
}

// clean says that a path is absolute and the shortest of its name, as wholeDisk takes it.
func clean(name string) bool { return strings.HasPrefix(name, "/") && path.Clean(name) == name }

// Parts splits a path; ".." stays, since what it means depends on links.
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
// the root, and the sticky bit is no excuse (safe_path in OpenSSH's misc.c; Dropbear walks the same
// way in checkpubkeyperms). Who owns a link does not count: what a link says cannot be changed, and
// only those who can write to its folder can replace it.
func (f *Files) Trusted(names ...string) error {
	var u host.Untrusted
	judged := map[string]host.Info{}
	for _, name := range names {
		for _, at := range f.trail(name, judged) {
			i := judged[at]
			if !i.Mode.IsRegular() && !i.Mode.IsDir() {
				continue // ReadFile refuses it, and to systemd it is a mask: /dev/null is to stay as it is
			}
			if i.UID != 0 {
				note(&u.Owners, host.Fault{Why: fmt.Sprintf("user %d owns", i.UID), Name: at})
			}
			switch {
			case i.Mode&0o002 != 0:
				note(&u.Modes, host.Fault{Why: "all users can write to", Name: at})
			case i.Mode&0o020 != 0:
				note(&u.Modes, host.Fault{Why: "its group can write to", Name: at})
			}
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

// note adds a fault once: several names lead through the same folders.
func note(all *[]host.Fault, f host.Fault) {
	if !slices.Contains(*all, f) {
		*all = append(*all, f)
	}
}

// trail returns all folders that a name leads through, over links, and the file at its end, and
// notes in judged what they are. It ends where nothing is, or where the caller may not look: who
// reads the file hears of that.
func (f *Files) trail(name string, judged map[string]host.Info) (trail []string) {
	at, hops := "/", 0
	for rest := append([]string{"."}, Parts(name)...); len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		i, ok := judged[next]
		if !ok {
			var err error
			if i, err = f.Plain(next); err != nil {
				return trail
			}
		}
		if i.Mode&fs.ModeSymlink == 0 {
			judged[next], trail, at = i, append(trail, next), next
			continue
		}
		target, err := f.Readlink(next)
		if hops++; err != nil || hops > MaxHops {
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
