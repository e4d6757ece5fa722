// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// Tree is what lies in some folders of a host: by name, what can be said of it.
type Tree map[string]Entry

// Entry is one file, folder or link.
type Entry struct {
	Mode     fs.FileMode
	UID, GID uint32
	// Is is a file's SHA-256 and size, or where a link leads.
	Is string
	// Changed is the time of the last change to it or its mode and owner (ctime), which no process
	// can set back.
	Changed time.Time
}

func (e Entry) String() string {
	return fmt.Sprintf("%v %d:%d %s", e.Mode, e.UID, e.GID, e.Is)
}

// restless is what a running system changes all the time: logs and caches, its random seed, timers'
// stamps.
func restless() []string {
	return []string{"/var/log", "/var/cache", "/var/tmp", "/var/lib/systemd", "/var/lib/containerd"}
}

// Tree reads folders of the host, without logs, caches and the folders named in without. It reads
// the host's disk from outside: what is mounted over it in the host does not count.
func (h *Host) Tree(folders []string, without ...string) Tree {
	h.t.Helper()
	tree := Tree{}
	root := h.path("root")
	without = append(without, restless()...)
	for _, folder := range folders {
		err := filepath.WalkDir(root+folder, func(place string, d fs.DirEntry, err error) error {
			name := strings.TrimPrefix(place, root)
			if slices.Contains(without, name) {
				return fs.SkipDir
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone while we looked
			}
			if err == nil {
				tree[name], err = entryOf(place)
			}
			return err
		})
		must.That(h.t, err == nil, "cannot read %s of the host: %v", folder, err)
	}

	return tree
}

func entryOf(place string) (Entry, error) {
	info, err := os.Lstat(place)
	if err != nil {
		return Entry{}, err
	}
	stat, _ := info.Sys().(*syscall.Stat_t)
	e := Entry{
		Mode:    info.Mode(),
		UID:     stat.Uid,
		GID:     stat.Gid,
		Changed: time.Unix(stat.Ctim.Unix()),
	}
	switch {
	case info.Mode().IsRegular():
		e.Is, err = digest(place, digestKey{stat.Ino, info.Size(), e.Changed})
		e.Is += fmt.Sprintf(" %d", info.Size())
	case info.Mode()&fs.ModeSymlink != 0:
		e.Is, err = os.Readlink(place)
	}

	return e, err
}

// digests are those of files that no test writes: all hosts of a distribution have the same ones
// below their own.
var digests sync.Map

// digestKey tells one content of a file from another.
type digestKey struct {
	inode   uint64
	size    int64 // a power cut may leave a file without its content, and with its time
	changed time.Time
}

// digest is a file's SHA-256. A file that was changed within the last second is read each time: its
// time may not tell the next change.
func digest(place string, key digestKey) (string, error) {
	if known, ok := digests.Load(key); ok {
		return known.(string), nil
	}

	settled := time.Since(key.changed) > time.Second
	file, err := os.Open(place)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}

	text := fmt.Sprintf("%x", sum.Sum(nil))
	if settled {
		digests.Store(key, text)
	}
	return text, nil
}

// Diff says what is different in another tree, times aside; "" if nothing is.
func (t Tree) Diff(other Tree) string {
	return t.diff(other, func(a, b Entry) bool {
		a.Changed = b.Changed
		return a == b
	})
}

// Touched is Diff with times: it tells of a file that was written with what it held before, too.
func (t Tree) Touched(other Tree) string {
	return t.diff(other, func(a, b Entry) bool {
		return a.Changed.Equal(b.Changed) && a.String() == b.String()
	})
}

func (t Tree) diff(other Tree, same func(a, b Entry) bool) string {
	all := maps.Clone(t)
	maps.Copy(all, other)

	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, had := t[name]
		now, has := other[name]
		switch {
		case !had:
			fmt.Fprintf(&out, "+ %s %v\n", name, now)
		case !has:
			fmt.Fprintf(&out, "- %s %v\n", name, was)
		case !same(was, now):
			fmt.Fprintf(&out, "~ %s %v, was %v\n", name, now, was)
		}
	}

	return out.String()
}
