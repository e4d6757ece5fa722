// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Untrusted reports files and folders that other users than root can change, and so can choose what a run by root does.
type Untrusted struct {
	Name   string // of what was asked about, the first that depends on them
	Owners []Fault
	Modes  []Fault
}

// A Fault is one of them.
type Fault struct {
	Why  string // "user 1000 owns", "its group can write to"
	Name string
}

func (u *Untrusted) Error() string {
	first := append(u.Owners[:len(u.Owners):len(u.Owners)], u.Modes...)[0]
	return fmt.Sprintf("cannot trust %s: %s %s", u.Name, first.Why, first.Name)
}

// Trusted is View's. The rule is sshd's StrictModes: each folder on the way is judged too, up to the root, and the sticky bit is
// no excuse (safe_path in OpenSSH's misc.c; Dropbear walks the same way in checkpubkeyperms). Who owns a link does not count: what
// a link says cannot be changed, and only those who can write to its folder can replace it.
func (f *Files) Trusted(names ...string) error {
	var u Untrusted
	judged := map[string]Info{}
	for _, name := range names {
		for _, at := range f.trail(name, judged) {
			i := judged[at]
			if i.UID != 0 {
				note(&u.Owners, Fault{fmt.Sprintf("user %d owns", i.UID), at})
			}
			switch {
			case i.Mode&0o002 != 0:
				note(&u.Modes, Fault{"all users can write to", at})
			case i.Mode&0o020 != 0:
				note(&u.Modes, Fault{"its group can write to", at})
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
func note(all *[]Fault, f Fault) {
	if !slices.Contains(*all, f) {
		*all = append(*all, f)
	}
}

// trail returns all folders that a name leads through, over links, and the file at its end, and adds to judged what they are.
// It ends where nothing is, or where the caller may not look: who reads the file hears of that.
func (f *Files) trail(name string, judged map[string]Info) (trail []string) {
	at, hops := "/", 0
	for rest := append([]string{"."}, parts(name)...); len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		i, ok := judged[next]
		if !ok {
			var err error
			if i, err = f.plain(next); err != nil {
				return trail
			}
		}
		if i.Mode&fs.ModeSymlink == 0 {
			judged[next], trail, at = i, append(trail, next), next
			continue
		}
		target, err := f.Readlink(next)
		if hops++; err != nil || hops > maxHops {
			return trail
		}
		if strings.HasPrefix(target, "/") {
			at = "/"
		}
		rest = append(parts(target), rest...)
	}
	return trail
}

// plain is Lstat without the extended attributes, which need the file opened.
func (f *Files) plain(name string) (Info, error) {
	at, err := f.reach(name, false)
	if err != nil {
		return Info{}, err
	}
	defer at.dir.Close()
	return at.lstat()
}
