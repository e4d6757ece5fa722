// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

//go:embed testdata/old-node.txtar
var oldNode string

// works are the touches a host has, each with what it shall lead to.
func works() []work {
	attr := host.Attr{
		Mode:   0o604,
		UID:    3,
		GID:    4,
		Xattrs: map[string]string{"user.x": "2", "user.y": "3"},
	}
	return []work{
		{"write", "/w/file", func(h host.Host) error {
			return h.WriteFile("/w/file", []byte("the new\n"), attr)
		}, nil},
		{"write, attributes kept", "/w/file", func(h host.Host) error {
			return h.WriteFile("/w/file", []byte("x"), host.Attr{})
		}, nil},
		{"write new", "/w/new", func(h host.Host) error {
			return h.WriteFile("/w/new", []byte("new\n"), attr)
		}, nil},
		{"write empty", "/w/empty", func(h host.Host) error {
			return h.WriteFile("/w/empty", nil, attr)
		}, nil},
		{"write through link", "/w/file", func(h host.Host) error {
			return h.WriteFile("/w/link", []byte("new\n"), attr)
		}, nil},
		{"append", "/w/log", func(h host.Host) error { return h.Append("/w/log", []byte("two\n")) }, torn},
		{"append after torn", "/w/torn", func(h host.Host) error {
			return h.Append("/w/torn", []byte("two\n"))
		}, torn},
		{"append new", "/w/newlog", func(h host.Host) error {
			return h.Append("/w/newlog", []byte("one\n"))
		}, torn},
		{"link", "/w/newlink", func(h host.Host) error { return h.Symlink("/w/newlink", "file") }, nil},
		{"link for file", "/w/file", func(h host.Host) error { return h.Symlink("/w/file", "log") }, nil},
		{"link for link", "/w/link", func(h host.Host) error { return h.Symlink("/w/link", "log") }, nil},
		{"mkdir", "/w/newfolder", func(h host.Host) error { return h.Mkdir("/w/newfolder", attr) }, nil},
		{"remove", "/w/file", func(h host.Host) error { return h.Remove("/w/file") }, nil},
		{"remove link", "/w/link", func(h host.Host) error { return h.Remove("/w/link") }, nil},
		{"remove folder", "/w/folder", func(h host.Host) error { return h.Remove("/w/folder") }, nil},
		{"rename", "/w/file", func(h host.Host) error { return h.Rename("/w/file", "/w/aside") }, nil},
		{"replace", "/w/file", func(h host.Host) error {
			return h.Replace("/w/file", replaced(), agree)
		}, nil},
		{"replace by link", "/w/file", func(h host.Host) error {
			return h.Replace("/w/file", &host.Entry{Link: "x"}, agree)
		}, nil},
		{"replace link", "/w/link", func(h host.Host) error {
			return h.Replace("/w/link", replaced(), agree)
		}, nil},
		{"replace nothing", "/w/new", func(h host.Host) error {
			return h.Replace("/w/new", replaced(), agree)
		}, nil},
		{"replace by nothing", "/w/file", func(h host.Host) error {
			return h.Replace("/w/file", nil, agree)
		}, nil},
		{"replace, plain", "/w/file", plain(func(h host.Host) error {
			return h.Replace("/w/file", replaced(), agree)
		}), nil},
		{"replace nothing, plain", "/w/new", plain(func(h host.Host) error {
			return h.Replace("/w/new", replaced(), agree)
		}), nil},
		{"replace by nothing, plain", "/w/file", plain(func(h host.Host) error {
			return h.Replace("/w/file", nil, agree)
		}), nil},
		{"chattr", "/w/file", func(h host.Host) error { return h.SetAttr("/w/file", attr) }, eachAttr},
	}
}

// plain does work on a disk that knows no exchange.
func plain(do func(host.Host) error) func(host.Host) error {
	return func(h host.Host) error {
		h.(*simhost.Node).PlainRenames()
		return do(h)
	}
}

type work struct {
	name   string
	at     string
	do     func(host.Host) error
	allows func(got, old, new string) bool // what a cut within it may leave beside the old and the new
}

// torn allows an append to be cut short: the next one starts on a line of its own.
func torn(got, old, new string) bool {
	if strings.HasPrefix(old, "nothing") {
		return strings.HasPrefix(got, "-rw-------;0:0;")
	}
	return strings.HasPrefix(got, strings.TrimSuffix(old, "|")) && strings.HasPrefix(new, strings.TrimSuffix(got, "|"))
}

// eachAttr allows each attribute to be old or new, and a mode that is narrower than both.
func eachAttr(got, old, new string) bool {
	const mode, owner, xattrs, content = 0, 1, 2, 3 // the parts that show shows
	is := strings.Split(got, ";")
	was := strings.Split(old, ";")
	will := strings.Split(new, ";")

	modes := []string{"-rw-------", was[mode], will[mode]}
	owners := []string{was[owner], will[owner]}
	someXattrs := []string{`map["user.x":"1"]`, `map["user.x":"2"]`, `map["user.x":"2" "user.y":"3"]`}
	return slices.Contains(modes, is[mode]) &&
		slices.Contains(owners, is[owner]) &&
		slices.Contains(someXattrs, is[xattrs]) &&
		is[content] == was[content]
}

// show is all a person can see at a name.
func show(t *testing.T, h host.View, name string) string {
	t.Helper()
	i, err := h.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "nothing"
	}
	must.OK(t, err)
	s := fmt.Sprintf("%v;%d:%d;%q;", i.Mode, i.UID, i.GID, i.Xattrs)
	switch {
	case i.Mode.IsDir():
		return s + "folder"
	case i.Mode&fs.ModeSymlink != 0:
		to := must.Get(h.Readlink(name))(t)
		return s + "-> " + to
	}

	return s + read(t, h, name) + "|"
}

func temps(t *testing.T, h host.View) (all []string) {
	names := must.Get(h.ReadDir("/w"))(t)
	for _, name := range names {
		if strings.HasPrefix(name, ".gpuadm-") {
			all = append(all, name)
		}
	}

	return all
}

func losses() []simhost.Loss {
	all := []simhost.Loss{simhost.LoseAll, simhost.LoseData, simhost.LoseNothing}
	for seed := range uint32(40) {
		all = append(all, simhost.Random(seed))
	}
	return all
}

// TestPowerCut cuts the power before every touch of every work, and after the last. What is found
// then is the old or the new and nothing else; after a work that reported success it is the new;
// and the work done again ends as if nothing had been.
func TestPowerCut(t *testing.T) {
	for _, w := range works() {
		t.Run(w.name, func(t *testing.T) {
			whole := simulated(t, oldNode)
			old := show(t, whole, w.at)
			must.OK(t, w.do(whole))
			want := show(t, whole, w.at)
			must.That(t, old != want, "nothing changes: %s", want)
			seen := map[string]int{}
			for touch := range whole.Touches() + 1 {
				for _, loss := range losses() {
					n := simulated(t, oldNode)
					n.CutAt(touch)
					err := w.do(n)
					done := touch == whole.Touches()
					must.That(t, done == (err == nil) && (done || errors.Is(err, simhost.ErrPower)), "cut at %d: %v", touch, err)
					n.Boot(loss)
					got := show(t, n, w.at)
					seen[got]++
					switch {
					case got == want:
					case err != nil && (got == old || w.allows != nil && w.allows(got, old, want)):
						again(t, n, w, old, want)
					default:
						t.Errorf("cut at %d of %d, %v: found %s\nold %s\nnew %s", touch, whole.Touches(), loss, got, old, want)
					}
				}
			}

			check.That(t, seen[old] != 0 && seen[want] != 0, "the power cuts never left the old and the new: %v", seen)
		})
	}
}

// again does the work once more after a cut.
func again(t *testing.T, n *simhost.Node, w work, old, want string) {
	t.Helper()
	err := w.do(n)
	got := show(t, n, w.at)
	if strings.HasPrefix(w.name, "append") {
		line := want[strings.LastIndexAny(strings.TrimSuffix(want, "\n|"), "\n;")+1:]
		check.That(t, err == nil && (strings.HasSuffix(got, "\n"+line) || strings.HasSuffix(got, ";"+line)), "done again (%v): %s, want at the end of it %s", err, got, want)
		return
	}

	check.That(t, err == nil && got == want, "done again (%v): %s, want %s", err, got, want)
	left := temps(t, n)
	check.That(t, len(left) == 0 || w.name == "chattr", "done again: left %v", left)
}

// TestFail lets every touch of every work fail once, as a full disk does: the old content remains,
// no temporary file is left, and the work done again is safe from a power cut.
func TestFail(t *testing.T) {
	for _, w := range works() {
		t.Run(w.name, func(t *testing.T) {
			whole := simulated(t, oldNode)
			old := show(t, whole, w.at)
			must.OK(t, w.do(whole))
			want := show(t, whole, w.at)
			for touch := range whole.Touches() {
				n := simulated(t, oldNode)
				n.Fail(touch, syscall.ENOSPC)
				err := w.do(n)
				check.That(t, errors.Is(err, syscall.ENOSPC) && strings.HasPrefix(err.Error(), "cannot ") && strings.HasSuffix(err.Error(), ": no space left on device"),
					"touch %d: %v", touch, err)
				got := show(t, n, w.at)
				last := touch == whole.Touches()-1 // the sync of a folder in which all is done
				if got != old && !(last && got == want) && (w.allows == nil || !w.allows(got, old, want)) {
					t.Errorf("touch %d failed and left %s", touch, got)
				}
				left := temps(t, n)
				check.That(t, len(left) == 0, "touch %d failed and left %v", touch, left)
				if strings.HasPrefix(w.name, "append") || got == want {
					continue
				}
				must.OK(t, w.do(n))
				n.Boot(simhost.LoseAll)
				check.Equal(t, show(t, n, w.at), want, "touch %d failed, done again, power cut:", touch)
			}
		})
	}
}

// TestSweep finds what a killed gpuadm left and nothing else gone.
func TestSweep(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.Mkdir("/w", ownedBySelf(0o755)))
		for _, name := range []string{".gpuadm-x.tmp", ".gpuadm-config", "x.tmp"} {
			must.OK(t, h.WriteFile("/w/"+name, nil, ownedBySelf(0o600)))
		}
		must.OK(t, h.WriteFile("/w/.gpuadm-x.tmp", nil, ownedBySelf(0o600)))
		must.OK(t, h.Mkdir("/w/.gpuadm-y.tmp", ownedBySelf(0o700)))
		must.OK(t, h.Symlink("/w/.gpuadm-z.tmp", "x"))
		must.OK(t, h.WriteFile("/w/a", nil, ownedBySelf(0o600)))
		names, err := h.ReadDir("/w")
		want := []string{".gpuadm-config", "a", "x.tmp"}
		check.That(t, slices.Equal(names, want), "%q (%v), want %q", names, err, want)
		// In another folder, which it is asked for: through a link, and where none is.
		must.OK(t, h.Mkdir("/w/.gpuadm-y.tmp", ownedBySelf(0o700)))
		must.OK(t, h.Symlink("/l", "w"))
		must.OK(t, h.Sweep("/l"))
		for _, none := range []string{"/none", "/w/none/none", "/w/a", "/w/a/none"} {
			must.OK(t, h.Sweep(none))
		}
		names, err = h.ReadDir("/w")
		check.That(t, len(names) == 3, "%q (%v)", names, err)
	})
}

func TestReasons(t *testing.T) {
	n := simulated(t, `
-- etc/hard chattr=i --
-- etc/log chattr=a --
-- etc/closed/ chattr=i --
-- etc/closed/x --
-- etc/hosts mount --
-- usr/ ro --
-- usr/lib/x --
-- etc/l link=/usr/lib/x --
`)
	for name, want := range map[string]string{
		"/etc/hard":     "cannot write /etc/hard: it is immutable (chattr +i)",
		"/etc/log":      "cannot write /etc/log: it is append-only (chattr +a)",
		"/etc/closed/x": "cannot write /etc/closed/x: its folder is immutable (chattr +i)",
		"/etc/hosts":    "cannot write /etc/hosts: it is a mount point of its own",
		"/usr/lib/x":    "cannot write /usr/lib/x: read-only file system",
		"/etc/l":        "cannot write /etc/l (which leads to /usr/lib/x): read-only file system",
		"/etc/no/x":     "cannot write /etc/no/x: no such file or directory",
	} {
		err := n.WriteFile(name, nil, host.Attr{})
		check.That(t, err != nil && err.Error() == want, "%v, want %s", err, want)
	}

	check.OK(t, n.Append("/etc/log", []byte("more\n")))
}

// TestLabels: SELinux labels stay and cannot be removed; what the kernel computes from the content
// is not restored.
func TestLabels(t *testing.T) {
	n := simulated(t, "-- etc/x xattr=security.selinux=label xattr=security.ima=sum xattr=security.evm=sum xattr=user.a=b --\nold\n")
	i, err := n.Lstat("/etc/x")
	check.That(t, len(i.Xattrs) == 2 && i.Xattrs["security.selinux"] == "label" && i.Xattrs["user.a"] == "b", "%q (%v)", i.Xattrs, err)
	bare := i.Attr()
	bare.Xattrs = map[string]string{}
	must.OK(t, n.SetAttr("/etc/x", bare))
	i, err = n.Lstat("/etc/x")
	check.That(t, len(i.Xattrs) == 1 && i.Xattrs["security.selinux"] == "label", "%q (%v)", i.Xattrs, err)
	must.OK(t, n.WriteFile("/etc/x", []byte("new"), host.Attr{Mode: 0o644}))
	check.Has(t, n.Tree(), `"new" security.selinux="label"`+"\n", "got")
}

// TestNarrow: a change of owner and mode never lets the new owner do what neither the old nor the
// new mode lets him.
func TestNarrow(t *testing.T) {
	for touch := 0; ; touch++ {
		n := simulated(t, "-- etc/x mode=4755 --\n")
		n.CutAt(touch)
		err := n.SetAttr("/etc/x", host.Attr{Mode: 0o640, UID: 5, GID: 5})
		n.Boot(simhost.LoseNothing)
		i, err2 := n.Lstat("/etc/x")
		must.OK(t, err2)
		check.That(t, i.UID != 5 || i.Mode&^0o640 == 0, "cut at %d: the new owner has %v", touch, i.Mode)
		if err == nil {
			return
		}
	}
}
