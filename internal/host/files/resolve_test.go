// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// twoWays are two Files of this machine: quick has the kernel follow a whole path in one call, slow
// walks part by part.
type twoWays struct{ quick, slow *Files }

func newTwoWays(t *testing.T) twoWays {
	t.Helper()
	return twoWays{
		quick: New(ownRoot{must.Get(OpenRoot("/"))(t)}),
		slow:  New(struct{ Disk }{must.Get(OpenRoot("/"))(t)}),
	}
}

// agree asks both ways about a name: they say the same of it, or fail alike. It returns what slow says.
func agree[T any](
	t *testing.T, ways twoWays, call, name string, ask func(*Files, string) (T, error),
) (said T, err error) {
	t.Helper()
	got, gotErr := ask(ways.quick, name)
	said, err = ask(ways.slow, name)
	same := errnoOf(gotErr) == errnoOf(err) && (gotErr == nil) == (err == nil) && reflect.DeepEqual(got, said)
	check.That(t, same, "%s %s: in one call %v %v, part by part %v %v", call, name, got, gotErr, said, err)
	return said, err
}

func errnoOf(err error) (number syscall.Errno) {
	errors.As(err, &number)
	return number
}

// TestReachIsWalkInATree takes every path of up to four parts through a tree with links of all
// kinds.
func TestReachIsWalkInATree(t *testing.T) {
	root := treeOfLinks(t)
	ways := newTwoWays(t)
	inOneCall := 0
	var try func(name string, depth int)
	try = func(name string, depth int) {
		agree(t, ways, "stat", name, (*Files).Stat)
		agree(t, ways, "lstat", name, (*Files).Lstat)
		agree(t, ways, "list", name, (*Files).ReadDir)
		agree(t, ways, "resolve", name, (*Files).Resolve)
		if disk, ok := ways.quick.whole(name); ok {
			if _, err := disk.Real(name); err == nil {
				inOneCall++
			}
		}

		if depth == 0 {
			return
		}

		parts := []string{"a", "b", "c", "f", "l", "none", "..", "."}
		if name == root {
			parts = append(parts, "abs", "up", "top", "two", "out", "gone", "round")
		}
		for _, part := range parts {
			try(name+"/"+part, depth-1)
		}
	}

	try(root, 4)
	check.That(t, inOneCall >= 90, "only %d paths were resolved in one call", inOneCall)
}

// treeOfLinks makes a tree with links of all kinds. It is five folders deep: five times ".." lists no
// folder that other programs write, as /tmp.
func treeOfLinks(t *testing.T) (root string) {
	t.Helper()
	root = filepath.Join(must.Get(filepath.EvalSymlinks(t.TempDir()))(t), "1/2/3/4/root")
	must.OK(t, os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755))
	for _, name := range []string{"f", "a/f", "a/b/f"} {
		must.OK(t, os.WriteFile(filepath.Join(root, name), []byte("file"), 0o644))
	}
	for name, target := range map[string]string{
		"l": "a/b", "abs": root + "/a", "up": "../" + filepath.Base(root) + "/a",
		"top": root, "two": "abs", "out": "a/../f", "gone": "none/a", "round": "round",
		"a/l": root + "/a", "a/b/l": "../../f", "a/b/c/l": "none", "a/b/none": "l",
	} {
		must.OK(t, os.Symlink(target, filepath.Join(root, name)))
	}

	for _, name := range []string{"a/b", "a/f"} { // /dev/shm and tmpfs of older kernels have none of these
		err := unix.Setxattr(filepath.Join(root, name), "user.test", []byte(name), 0)
		must.That(t, err == nil || err == unix.ENOTSUP, "%v", err)
	}

	return root
}

// TestReachIsWalk reads this machine, two levels deep below folders with links of all kinds.
func TestReachIsWalk(t *testing.T) {
	// Other processes make files in folders, and read and write files meanwhile.
	stat := func(f *Files, name string) (host.Info, error) {
		info, err := f.Stat(name)
		if info.Mode.IsDir() {
			return host.Info{Mode: info.Mode}, err
		}
		return host.Info{Mode: info.Mode, Size: info.Size}, err
	}

	lstat := func(f *Files, name string) (host.Info, error) {
		info, err := f.Lstat(name)
		return host.Info{
			Mode:   info.Mode,
			UID:    info.UID,
			Xattrs: info.Xattrs,
			Chattr: info.Chattr,
		}, err
	}

	ways := newTwoWays(t)
	names := 0
	links := 0
	var try func(name string, depth int)
	try = func(name string, depth int) {
		agree(t, ways, "stat", name, stat)
		agree(t, ways, "lstat", name, lstat)
		agree(t, ways, "resolve", name, (*Files).Resolve)
		_, err := agree(t, ways, "read link", name, (*Files).Readlink)
		names++
		if err == nil {
			links++
		}

		info, err := ways.slow.Lstat(name)
		isSmall := err == nil && info.Mode.IsRegular() && info.Size < 1<<20
		if isSmall && strings.HasPrefix(name, "/etc/") {
			agree(t, ways, "read", name, (*Files).ReadFile)
		}
		below, err := ways.slow.ReadDir(name)
		if err != nil || depth == 0 {
			return
		}
		for _, part := range append(below[:min(len(below), 60)], "none", "none/below") {
			try(strings.TrimSuffix(name, "/")+"/"+part, depth-1)
		}
	}

	for _, name := range []string{"/etc", "/lib", "/usr/lib", "/bin", "/sys/bus/cpu/devices"} { // other processes leave these alone
		try(name, 1)
	}
	for _, name := range []string{
		"/", "/dev", "/dev/fd", "/var/run", "/var/run/lock", "/proc/self",
		"/etc/mtab", "/none", "/etc/passwd/below",
	} {
		try(name, 0)
		try(name+"/.", 0)
	}

	check.That(t, names >= 100 && links >= 5, "only %d names with %d links were tried", names, links)
}

// TestErrorNamesWhereItLed: an error of a read says where a link has led to.
func TestErrorNamesWhereItLed(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "real/folder")
	must.OK(t, os.MkdirAll(folder, 0o755))
	must.OK(t, os.Symlink("real", filepath.Join(dir, "link")))

	ways := newTwoWays(t)
	for what, files := range map[string]*Files{"whole": ways.quick, "part by part": ways.slow} {
		_, err := files.ReadFile(filepath.Join(dir, "link/folder"))
		var refused *host.FileError
		must.That(t, errors.As(err, &refused), "%s: %v", what, err)
		check.Equal(t, refused.Leads, folder, "%s: it leads to", what)
	}
}

func TestOwnersWithoutRoot(t *testing.T) {
	for _, id := range []int{0, 1, 1000, 65534} {
		for _, caller := range []int{0, 1000} {
			back := storedOwner(shownOwner(id, caller), caller)
			check.That(t, back == id || id == 0, "owner %d, seen by %d, goes back as %d", id, caller, back)
		}
	}

	check.That(t, shownOwner(1000, 1000) == 0 && storedOwner(0, 1000) == 1000 && shownOwner(7, 1000) == 7, "what the caller owns does not count as root's")
}
