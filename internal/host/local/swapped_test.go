// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/swap"
)

// swapped is a folder of another user's with a root folder in it, and something else that gets its
// name.
type swapped struct {
	parent string
	img    string // the name that is opened
	other  string // and what it is exchanged with: a link, or a folder
	tree   string // the tree that lies outside of the root folder
	was    string // and what is in it
}

// layTree makes a folder in which all operations of the tests find what they need.
func layTree(t *testing.T, dir, says string) {
	t.Helper()
	for _, name := range []string{"etc/app", "var/lib"} {
		must.OK(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	for _, name := range []string{"etc/file", "etc/app/old", "var/lib/log"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(says), 0o644))
	}
	for name, target := range map[string]string{"etc/link": "/etc/app", "etc/up": "../../../../etc/app"} {
		must.OK(t, os.Symlink(target, filepath.Join(dir, name)))
	}
}

// all is a folder's whole content in words.
func all(t *testing.T, dir string) string {
	t.Helper()
	var words strings.Builder
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&words, "%s %v", strings.TrimPrefix(name, dir), info.Mode())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(name)
			fmt.Fprintf(&words, " %q %v", data, err)
		}
		words.WriteByte('\n')
		return nil
	})
	must.OK(t, err)
	return words.String()
}

// inMemory is a folder on a file system in memory where there is one: a disk's fsync would take
// most of the time.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gpuadm-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// swappedRoots are the two ways to put something else in the place of a root folder.
func swappedRoots(t *testing.T, test func(t *testing.T, s swapped)) {
	for _, way := range []string{"link", "folder"} {
		t.Run(way, func(t *testing.T) {
			base := inMemory(t)
			s := swapped{parent: filepath.Join(base, "parent")}
			s.img, s.other, s.tree = filepath.Join(s.parent, "img"), filepath.Join(s.parent, "other"), filepath.Join(base, "tree")
			if way == "folder" {
				s.tree = s.other
			}
			layTree(t, s.img, "inside")
			layTree(t, s.tree, "outside")
			if way == "link" {
				must.OK(t, os.Symlink(s.tree, s.other))
				must.OK(t, os.Lchown(s.other, other(), -1))
			}
			s.was = all(t, s.tree)
			test(t, s)
		})
	}
}

// other is the user who swaps.
func other() int {
	if os.Geteuid() == 0 {
		return swap.UID
	}
	return os.Geteuid()
}

func (s swapped) exchange(t *testing.T) {
	t.Helper()
	must.OK(t, unix.Renameat2(unix.AT_FDCWD, s.img, unix.AT_FDCWD, s.other, unix.RENAME_EXCHANGE))
}

// work is one of each operation. It returns how many of them did not do what they should in the
// root folder.
func work(t *testing.T, h *folder) (failed int) {
	t.Helper()
	attr := host.Attr{Mode: 0o644}
	for _, name := range []string{"/etc/file", "/etc/link/old", "/etc/up/old", "/var/lib/log"} {
		if data, err := h.ReadFile(name); strings.Contains(string(data), "outside") {
			t.Errorf("read %s outside of the root", name)
		} else if err != nil {
			failed++
		}
	}

	for _, err := range []error{
		h.WriteFile("/etc/new", []byte("x"), attr),
		h.WriteFile("/etc/link/new", []byte("x"), attr),
		h.WriteFile("/top", []byte("x"), attr),
		h.Append("/var/lib/log", []byte("inside\n")),
		h.SetAttr("/etc/file", host.Attr{Mode: 0o600}),
		h.SetAttr("/etc/file", attr),
		h.Mkdir("/etc/dir", host.Attr{Mode: 0o755}),
		h.Symlink("/etc/sym", "file"),
		h.Rename("/etc/new", "/etc/renamed"),
		h.Replace("/etc/file", &host.Entry{Data: []byte("inside"), Attr: attr}, func(*host.Entry) bool { return true }),
		h.Remove("/etc/renamed"), h.Remove("/etc/link/new"), h.Remove("/top"), h.Remove("/etc/dir"), h.Remove("/etc/sym"),
	} {
		if err != nil {
			failed++
		}
	}

	if names, err := h.ReadDir("/etc/up"); err != nil || len(names) != 1 {
		failed++
	}
	if unlock, err := h.Lock(); err != nil {
		failed++
	} else {
		unlock()
	}

	return failed
}

// TestRootIsOpenedOnce puts something else in the place of a root folder that is open: all that
// comes then is done in the folder that was opened, and nothing outside.
func TestRootIsOpenedOnce(t *testing.T) {
	swappedRoots(t, func(t *testing.T, s swapped) {
		h := must.Get(Open(s.img))(t).(*folder)
		s.exchange(t)
		defer s.exchange(t)
		failed := work(t, h)
		check.That(t, failed == 0, "%d operations did not go to the root folder", failed)
		unlock := must.Get(h.Lock())(t)
		defer unlock()
		moved := must.Get(Open(s.other))(t)
		_, err := moved.Lock()
		check.That(t, errors.As(err, new(*host.Busy)), "another lock than the root folder's: %v", err)
		s.wants(t, s.img)
	})
}

// wants compares what lies outside of the root folder with what was there.
func (s swapped) wants(t *testing.T, at string) {
	t.Helper()
	if s.tree != s.other {
		at = s.tree
	}
	is := all(t, at)
	check.That(t, is == s.was, "outside of the root there is\n%s\nand there was\n%s", is, s.was)
}

// TestSwappedRoot has a process without rights exchange the root folder for a link or another
// folder as fast as it can, while files are read and written.
func TestSwappedRoot(t *testing.T) {
	swappedRoots(t, func(t *testing.T, s swapped) {
		h := must.Get(Open(s.img))(t).(*folder)
		stop := swap.Start(t, s.parent, "img", "other")
		failed := 0
		for range 20 {
			failed += work(t, h)
		}
		stop()
		check.That(t, failed == 0, "%d operations did not go to the root folder", failed)
		s.wants(t, s.other)
	})
}

// TestRootBehindALink: a user who may write where the root folder lies can put a link in its place
// before it is opened, too.
func TestRootBehindALink(t *testing.T) {
	base := t.TempDir()
	layTree(t, filepath.Join(base, "img"), "")
	link := filepath.Join(base, "link")
	must.OK(t, os.Symlink("img", link))
	for _, root := range []string{link, link + "/etc"} {
		want := "cannot open root folder " + root + ": " + link + " is a link to img, and gpuadm follows none on the way to a root folder: name it as realpath prints it"
		_, err := Open(root)
		check.That(t, err != nil && err.Error() == want, "%v, want %s", err, want)
	}

	for root, want := range map[string]error{"none": unix.ENOENT, "none/x": unix.ENOENT, "img/etc/file": unix.ENOTDIR, "img/etc/file/x": unix.ENOTDIR} {
		_, err := Open(filepath.Join(base, root))
		check.That(t, errors.Is(err, want), "%s: %v, want %v", root, err, want)
	}
}

// TestRoomOfTheOpenRoot: how much room there is, is asked of the folder that was opened.
func TestRoomOfTheOpenRoot(t *testing.T) {
	parent := t.TempDir()
	s := swapped{img: filepath.Join(parent, "img"), other: filepath.Join(parent, "other")}
	layTree(t, s.img, "")
	must.OK(t, os.Symlink("/proc", s.other))
	h := must.Get(Open(s.img))(t).(*folder)
	s.exchange(t)
	defer s.exchange(t)
	for _, name := range []string{"/", "/etc", "/etc/file", "/etc/up", "/none/of/these"} {
		room, err := h.Room(name)
		check.That(t, err == nil && room.Bytes != 0, "%s: %+v (%v)", name, room, err)
	}
}
