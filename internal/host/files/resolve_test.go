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

// TestReachIsWalkInATree takes every path of up to four parts through a tree with links of all
// kinds, in whole paths and part by part: both say the same of it, or fail alike.
func TestReachIsWalkInATree(t *testing.T) {
	// Five folders deep: five times ".." lists no folder that other programs write, as /tmp.
	root := filepath.Join(must.Get(filepath.EvalSymlinks(t.TempDir()))(t), "1/2/3/4/root")
	must.OK(t, os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755))
	for name, text := range map[string]string{"f": "file", "a/f": "file", "a/b/f": "file"} {
		must.OK(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	for name, target := range map[string]string{"l": "a/b", "abs": root + "/a", "up": "../" + filepath.Base(root) + "/a", "top": root, "two": "abs", "out": "a/../f", "gone": "none/a", "round": "round", "a/l": root + "/a", "a/b/l": "../../f", "a/b/c/l": "none", "a/b/none": "l"} {
		must.OK(t, os.Symlink(target, filepath.Join(root, name)))
	}
	for _, name := range []string{"a/b", "a/f"} { // /dev/shm and tmpfs of older kernels have none of these
		err := unix.Setxattr(filepath.Join(root, name), "user.test", []byte(name), 0)
		must.That(t, err == nil || err == unix.ENOTSUP, "%v", err)
	}
	quick, slow := New(ownRoot{must.Get(OpenRoot("/"))(t)}), New(struct{ Disk }{must.Get(OpenRoot("/"))(t)})
	errno := func(err error) (no syscall.Errno) {
		must.That(t, err == nil || errors.As(err, &no), "%v", err)
		return no
	}
	same := func(call, name string, is, want any, err, wantErr error) {
		check.That(t, errno(err) == errno(wantErr) && reflect.DeepEqual(is, want), "%s %s: in one call %v %v, part by part %v %v", call, name, is, err, want, wantErr)
	}
	real := 0
	var try func(name string, depth int)
	try = func(name string, depth int) {
		i, err := quick.Stat(name)
		want, wantErr := slow.Stat(name)
		same("stat", name, i, want, err, wantErr)
		i, err = quick.Lstat(name)
		want, wantErr = slow.Lstat(name)
		same("lstat", name, i, want, err, wantErr)
		names, err := quick.ReadDir(name)
		wantNames, wantErr := slow.ReadDir(name)
		same("list", name, names, wantNames, err, wantErr)
		at, err := quick.Resolve(name)
		wantAt, wantErr := slow.Resolve(name)
		same("resolve", name, at, wantAt, err, wantErr)
		if disk, ok := quick.whole(name); ok {
			if _, err := disk.Real(name); err == nil {
				real++
			}
		}
		parts := []string{"a", "b", "c", "f", "l", "none", "..", "."}
		if name == root {
			parts = append(parts, "abs", "up", "top", "two", "out", "gone", "round")
		}
		if depth > 0 {
			for _, part := range parts {
				try(name+"/"+part, depth-1)
			}
		}
	}
	try(root, 4)
	check.That(t, real >= 90, "only %d paths were resolved in one call", real)
}

// TestReachIsWalk reads this machine in whole paths and part by part, two levels deep below folders
// with links of all kinds: both say the same.
func TestReachIsWalk(t *testing.T) {
	quick, slow := New(ownRoot{must.Get(OpenRoot("/"))(t)}), New(struct{ Disk }{must.Get(OpenRoot("/"))(t)})
	n, links := 0, 0
	same := func(call, name string, is, want any, err, wantErr error) {
		t.Helper()
		var a, b syscall.Errno
		if errors.As(err, &a); errors.As(wantErr, &b) && a != b || (err == nil) != (wantErr == nil) || !reflect.DeepEqual(is, want) {
			t.Errorf("%s %s: in one call %v %v, part by part %v %v", call, name, is, err, want, wantErr)
		}
	}
	var try func(name string, depth int)
	try = func(name string, depth int) {
		i, err := quick.Stat(name)
		want, wantErr := slow.Stat(name)
		if i.Mode.IsDir() { // others make files in it
			i, want = host.Info{Mode: i.Mode}, host.Info{Mode: want.Mode}
		}
		same("stat", name, i.Mode, want.Mode, err, wantErr)
		same("stat", name, i.Size, want.Size, err, wantErr)
		i, err = quick.Lstat(name)
		want, wantErr = slow.Lstat(name)
		same("lstat", name, []any{i.Mode, i.UID, i.Xattrs, i.Chattr}, []any{want.Mode, want.UID, want.Xattrs, want.Chattr}, err, wantErr)
		at, err := quick.Resolve(name)
		wantAt, wantErr := slow.Resolve(name)
		same("resolve", name, at, wantAt, err, wantErr)
		to, err := quick.Readlink(name)
		wantTo, wantErr := slow.Readlink(name)
		same("read link", name, to, wantTo, err, wantErr)
		if n++; wantErr == nil {
			links++
		}
		if i.Mode.IsRegular() && i.Size < 1<<20 && strings.HasPrefix(name, "/etc/") {
			data, err := quick.ReadFile(name)
			wantData, wantErr := slow.ReadFile(name)
			same("read", name, string(data), string(wantData), err, wantErr)
		}
		names, err := slow.ReadDir(name)
		if err != nil || depth == 0 {
			return
		}
		for _, below := range append(names[:min(len(names), 60)], "none", "none/below") {
			try(strings.TrimSuffix(name, "/")+"/"+below, depth-1)
		}
	}
	for _, name := range []string{"/etc", "/lib", "/usr/lib", "/bin", "/sys/bus/cpu/devices"} { // other processes leave these alone
		try(name, 1)
	}
	for _, name := range []string{"/", "/dev", "/dev/fd", "/var/run", "/var/run/lock", "/proc/self", "/etc/mtab", "/none", "/etc/passwd/below"} {
		try(name, 0)
		try(name+"/.", 0)
	}
	check.That(t, n >= 100 && links >= 5, "only %d names with %d links were tried", n, links)
}

// TestErrorNamesWhereItLed: an error of a read says where a link has led to.
func TestErrorNamesWhereItLed(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, errors.Join(os.MkdirAll(filepath.Join(dir, "real/folder"), 0o755), os.Symlink("real", filepath.Join(dir, "link"))))
	for what, files := range map[string]*Files{"whole": New(ownRoot{must.Get(OpenRoot("/"))(t)}), "part by part": New(must.Get(OpenRoot("/"))(t))} {
		_, err := files.ReadFile(filepath.Join(dir, "link/folder"))
		e := (*host.FileError)(nil)
		check.That(t, errors.As(err, &e) && e.Leads == filepath.Join(dir, "real/folder"), "%s: %v", what, err)
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
