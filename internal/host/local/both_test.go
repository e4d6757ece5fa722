// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// tempDir is a folder on a file system in memory where there is one: a real disk's fsync would take
// most of the time.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gpuadm-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openFolder(t *testing.T) (host.Host, string) {
	t.Helper()
	dir := tempDir(t)
	h := must.Get(local.Open(dir))(t)
	return h, dir
}

func simulated(t *testing.T, archive string) *simhost.Node {
	t.Helper()
	n := must.Get(simhost.New([]byte(archive)))(t)
	return n
}

// both runs a test over the real disk and the simulated one.
func both(t *testing.T, test func(t *testing.T, h host.Host)) {
	t.Run("real", func(t *testing.T) {
		h, _ := openFolder(t)
		test(t, h)
	})
	t.Run("simulated", func(t *testing.T) {
		test(t, simulated(t, "-- sim.toml --\nlive = false\n"))
	})
}

// ownedBySelf is an Attr of the user the test runs as.
func ownedBySelf(mode fs.FileMode) host.Attr {
	return host.Attr{Mode: mode, UID: os.Getuid(), GID: os.Getgid()}
}

func read(t *testing.T, h host.View, name string) string {
	t.Helper()
	data := must.Get(h.ReadFile(name))(t)
	return string(data)
}

// errno is what kind of error it is, for comparing.
func errno(err error) string {
	if err == nil {
		return "ok"
	}
	if e := syscall.Errno(0); errors.As(err, &e) {
		return e.Error()
	}
	var f *host.FileError
	if errors.As(err, &f) {
		return f.Cause.Error()
	}
	return err.Error()
}

// TestSameDisk does the same random work on the real disk and on the simulated one: all answers
// must be the same.
func TestSameDisk(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		real, dir := openFolder(t)
		likeSimulated(t, real, dir)
		sim := simulated(t, "-- sim.toml --\nlive = false\n")
		must.OK(t, real.Mkdir("/w", ownedBySelf(0o755)))
		must.OK(t, sim.Mkdir("/w", ownedBySelf(0o755)))
		var log []string
		for range 60 {
			name, do := randomWork(r)
			want, got := do(real), do(sim)
			log = append(log, fmt.Sprintf("%s: %s", name, want))
			must.That(t, want == got, "seed %d:\n%s\nsimulated: %s", seed, strings.Join(log, "\n"), got)
		}

		os.RemoveAll(real.Root())
	}
}

// likeSimulated gives a root folder what a simulated node always has.
func likeSimulated(t *testing.T, h host.Host, dir string) {
	must.OK(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "usr/lib", "var", "var/lib", "var/log"} {
		must.OK(t, h.Mkdir("/"+name, ownedBySelf(0o755)))
	}
	must.OK(t, h.SetAttr("/tmp", ownedBySelf(fs.ModeSticky|0o777)))
}

func randomPath(r *rand.Rand) string {
	names := []string{"a", "a", "b", "b", "c", "..", ".", ""}
	p := "/w"
	for range 1 + r.IntN(4) {
		p += "/" + names[r.IntN(len(names))]
	}
	return p
}

func randomWork(r *rand.Rand) (string, func(host.Host) string) {
	p := randomPath(r)
	switch r.IntN(10) {
	case 0, 1:
		return "write " + p, func(h host.Host) string {
			return errno(h.WriteFile(p, []byte(p+"\n"), ownedBySelf(0o640)))
		}
	case 2:
		return "append " + p, func(h host.Host) string {
			return errno(h.Append(p, []byte("more")))
		}
	case 3, 4:
		target := randomPath(r)
		if r.IntN(2) == 0 {
			target = strings.TrimPrefix(target, "/w/")
		}
		return "link " + p + " -> " + target, func(h host.Host) string {
			return errno(h.Symlink(p, target))
		}
	case 5, 6:
		return "mkdir " + p, func(h host.Host) string {
			return errno(h.Mkdir(p, ownedBySelf(0o750)))
		}
	case 7:
		return "remove " + p, func(h host.Host) string { return errno(h.Remove(p)) }
	case 8:
		return "read " + p, func(h host.Host) string {
			data, err := h.ReadFile(p)
			names, err2 := h.ReadDir(p)
			return fmt.Sprintf("%q %s %q %s", data, errno(err), names, errno(err2))
		}
	}

	return "stat " + p, func(h host.Host) string {
		at, err := h.Resolve(p)
		i, err2 := h.Stat(p)
		l, err3 := h.Lstat(p)
		to, err4 := h.Readlink(p)
		return fmt.Sprint(at, errno(err), i.Mode, errno(err2), l.Mode, errno(err3), to, errno(err4))
	}
}

func TestResolve(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		for _, dir := range []string{"/d", "/d/e", "/d/e/f"} {
			must.OK(t, h.Mkdir(dir, ownedBySelf(0o755)))
		}
		must.OK(t, h.WriteFile("/d/file", []byte("x"), ownedBySelf(0o644)))
		for name, target := range map[string]string{
			"/abs": "/d/e", "/rel": "d/e", "/deep": "/d/e/f", "/d/up": "..", "/d/out": "../../../../d/e", "/top": "/",
			"/over": "../../../../../../../..", "/loop": "/pool", "/pool": "loop", "/self": "self", "/d/dot": ".", "/dangling": "d/none",
			"/lost": "/none/none", "/d/e/tofile": "../file", "/twice": "/abs/f", "/slashes": "//d///e//", "/empty": "x/../..",
		} {
			must.OK(t, h.Symlink(name, target))
		}

		previous := "/d/file"
		for i := range 41 {
			name := fmt.Sprintf("/hop%02d", i+1)
			must.OK(t, h.Symlink(name, previous))
			previous = name
		}

		for _, c := range []struct{ name, leads, err string }{
			{"/", "/", ""},
			{"/..", "/", ""},
			{"/../../d", "/d", ""},
			{"/abs", "/d/e", ""},
			{"/rel", "/d/e", ""},
			{"//abs//f/", "/d/e/f", ""},
			{"/deep/../x", "/d/e/x", ""}, // not /x: ".." is where the link led
			{"/d/up/d/./e", "/d/e", ""},
			{"/d/out/f", "/d/e/f", ""},
			{"/top/top/d", "/d", ""},
			{"/over", "/", ""},
			{"/over/d", "/d", ""},
			{"/d/dot/dot/e", "/d/e", ""},
			{"/dangling", "/d/none", ""},
			{"/twice", "/d/e/f", ""},
			{"/slashes/f", "/d/e/f", ""},
			{"/d/e/tofile", "/d/file", ""},
			{"/hop40", "/d/file", ""},
			{"/none", "/none", ""},
			{"/hop41", "", syscall.ELOOP.Error()},
			{"/loop", "", syscall.ELOOP.Error()},
			{"/self/x", "", syscall.ELOOP.Error()},
			{"/lost", "", syscall.ENOENT.Error()},
			{"/none/x", "", syscall.ENOENT.Error()},
			{"/empty", "", syscall.ENOENT.Error()},
			{"/d/file/x", "", syscall.ENOTDIR.Error()},
			{"/d/e/tofile/x", "", syscall.ENOTDIR.Error()},
			{"/d/file/..", "", syscall.ENOTDIR.Error()},
			{"d/e", "", "the path is not absolute"},
			{"", "", "the path is not absolute"},
		} {
			leads, err := h.Resolve(c.name)
			if c.err == "" {
				c.err = "ok"
			}
			check.That(t, leads == c.leads && errno(err) == c.err, "%q leads to %q (%s), want %q (%s)", c.name, leads, errno(err), c.leads, c.err)
		}
	})
}

func TestWriteKeepsLinks(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.Mkdir("/d", ownedBySelf(0o755)))
		must.OK(t, h.WriteFile("/d/file", []byte("old"), ownedBySelf(0o600)))
		must.OK(t, h.Symlink("/link", "/d/file"))
		must.OK(t, h.Symlink("/dangling", "d/new"))
		must.OK(t, h.WriteFile("/link", []byte("new"), ownedBySelf(0o640)))
		must.OK(t, h.WriteFile("/dangling", []byte("made"), ownedBySelf(0o400)))
		for name, want := range map[string]string{"/d/file": "new", "/d/new": "made"} {
			check.Equal(t, read(t, h, name), want, "%s is", name)
		}
		for name, want := range map[string]string{"/link": "/d/file", "/dangling": "d/new"} {
			got, err := h.Readlink(name)
			check.That(t, got == want, "%s says %q (%v), want %q", name, got, err, want)
		}

		i, _ := h.Stat("/link")
		check.That(t, i.Mode == 0o640, "mode is %v", i.Mode)
		must.OK(t, h.Remove("/link"))
		_, err := h.Stat("/d/file")
		check.That(t, err == nil, "removing a link took its target")
		err = h.Mkdir("/dangling", ownedBySelf(0o755))
		check.That(t, errors.Is(err, fs.ErrExist), "a folder in place of a link: %v", err)
	})
}

func TestNotRegular(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.Mkdir("/d", ownedBySelf(0o755)))
		_, err := h.ReadFile("/d")
		for what, err := range map[string]error{
			"read": err, "write": h.WriteFile("/d", nil, ownedBySelf(0o644)), "append": h.Append("/d", nil), "link": h.Symlink("/d", "x"),
		} {
			check.That(t, errors.Is(err, syscall.EISDIR), "%s a folder: %v", what, err)
		}

		must.OK(t, h.WriteFile("/d/x", nil, ownedBySelf(0o644)))
		err = h.Remove("/d")
		check.That(t, errors.Is(err, syscall.ENOTEMPTY) && err.Error() == "cannot remove /d: directory not empty", "%v", err)
	})
}

func TestAppend(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.Append("/log", []byte("one\n")))
		must.OK(t, h.Append("/log", []byte("two, to")))
		must.OK(t, h.Append("/log", []byte("three\n")))
		check.Equal(t, read(t, h, "/log"), "one\ntwo, to\nthree\n", "got")
		i, _ := h.Stat("/log")
		check.That(t, i.Mode == 0o600, "mode is %v", i.Mode)
	})
}

func TestAttr(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.Mkdir("/d", ownedBySelf(0o750|fs.ModeSetgid)))
		must.OK(t, h.WriteFile("/d/x", []byte("x"), ownedBySelf(0o755|fs.ModeSetuid)))
		for name, want := range map[string]fs.FileMode{"/d": fs.ModeDir | fs.ModeSetgid | 0o750, "/d/x": fs.ModeSetuid | 0o755} {
			i, err := h.Stat(name)
			check.That(t, err == nil && i.Mode == want && i.UID == os.Getuid(), "%s is %v of %d (%v), want %v", name, i.Mode, i.UID, err, want)
		}

		must.OK(t, h.SetAttr("/d/x", ownedBySelf(0o600)))
		must.OK(t, h.SetAttr("/d", ownedBySelf(0o700)))
		for name, want := range map[string]fs.FileMode{"/d": fs.ModeDir | 0o700, "/d/x": 0o600} {
			i, err := h.Stat(name)
			check.That(t, err == nil && i.Mode == want, "%s is %v (%v), want %v", name, i.Mode, err, want)
		}

		if os.Getuid() == 0 {
			must.OK(t, h.WriteFile("/d/x", []byte("x"), host.Attr{
				Mode: 0o755 | fs.ModeSetuid,
				UID:  7,
				GID:  8,
			}))
			i, err := h.Stat("/d/x")
			check.That(t, err == nil && i.Mode == fs.ModeSetuid|0o755 && i.UID == 7 && i.GID == 8, "%+v (%v)", i, err)
		}

		names, err := h.ReadDir("/d")
		check.That(t, slices.Equal(names, []string{"x"}), "%q (%v)", names, err)
	})
}

func TestXattrs(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		want := ownedBySelf(0o644)
		want.Xattrs = map[string]string{"user.a": "1", "user.b": "\x00\xff"}
		err := h.WriteFile("/x", []byte("x"), want)
		if errors.Is(err, syscall.ENOTSUP) {
			t.Skip("the file system of the test has no user xattrs:", err)
		}
		must.OK(t, err)
		has := func(want map[string]string) {
			t.Helper()
			i, err := h.Lstat("/x")
			check.That(t, err == nil && fmt.Sprint(i.Xattrs) == fmt.Sprint(want), "xattrs are %q (%v), want %q", i.Xattrs, err, want)
		}

		has(want.Xattrs)
		must.OK(t, h.WriteFile("/x", []byte("y"), ownedBySelf(0o600))) // nil keeps
		has(want.Xattrs)
		want.Xattrs = map[string]string{"user.b": "2"}
		must.OK(t, h.SetAttr("/x", want))
		has(want.Xattrs)
		want.Xattrs = map[string]string{} // empty takes off
		must.OK(t, h.WriteFile("/x", []byte("z"), want))
		has(nil)
	})
}
