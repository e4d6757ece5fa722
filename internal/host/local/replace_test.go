// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// seen agrees to what lies at a name now, and to nothing else.
func seen(t *testing.T, h host.Host, name string) func(*host.Entry) bool {
	t.Helper()
	i, err := h.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return func(found *host.Entry) bool { return found == nil }
	}
	must.OK(t, err)
	want := &host.Entry{}
	if i.Mode&fs.ModeSymlink != 0 {
		want.Link, err = h.Readlink(name)
		must.OK(t, err)
	} else {
		want.Data, want.Attr = []byte(read(t, h, name)), i.Attr()
	}

	return func(found *host.Entry) bool { return reflect.DeepEqual(found, want) }
}

func agree(*host.Entry) bool { return true }

// replaced is a file as the tests write it.
func replaced() *host.Entry {
	return &host.Entry{
		Data: []byte("ours\n"),
		Attr: host.Attr{Mode: 0o604, Xattrs: map[string]string{}},
	}
}

// edits are what another process may do to a file, each with how it shows that it was not lost.
func edits() map[string]struct {
	do    func(dir files.Folder) error
	shows func(shown string) bool
} {
	type edit = struct {
		do    func(dir files.Folder) error
		shows func(shown string) bool
	}
	return map[string]edit{
		"written in place": {func(dir files.Folder) error {
			file, err := dir.OpenAppend("file")
			if errors.Is(err, fs.ErrNotExist) {
				file, err = dir.Create("file")
			} else if errors.Is(err, syscall.ELOOP) {
				return writeEditor(dir)
			}

			if err != nil {
				return err
			}
			_, err = file.Write([]byte("theirs"))
			return err
		}, func(s string) bool { return strings.HasSuffix(s, "theirs|") }},
		"replaced": {writeEditor, func(s string) bool { return strings.HasSuffix(s, ";theirs|") }},
		"replaced by a link": {func(dir files.Folder) error {
			if err := dir.Symlink("theirs", "editor"); err != nil {
				return err
			}
			return dir.Rename("editor", "file", 0)
		}, func(s string) bool { return strings.HasSuffix(s, "-> theirs") }},
		"removed": {func(dir files.Folder) error {
			if err := dir.Unlink("file"); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}, func(s string) bool { return s == "nothing" }},
		"made a folder": {func(dir files.Folder) error {
			if err := dir.Unlink("file"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return dir.Mkdir("file")
		}, func(s string) bool { return strings.HasSuffix(s, ";folder") }},
		"opened to all": {func(dir files.Folder) error {
			file, err := dir.Open("file")
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) {
				return writeEditor(dir)
			} else if err != nil {
				return err
			}

			return file.Chmod(0o777)
		}, func(s string) bool {
			return strings.HasPrefix(s, "-rwxrwxrwx") || strings.HasSuffix(s, ";theirs|")
		}},
	}
}

// theirs replaces a file as editors do.
func writeEditor(dir files.Folder) error {
	file, err := dir.Create("editor")
	if err != nil {
		return err
	}
	if _, err := file.Write([]byte("theirs")); err != nil {
		return err
	}
	return dir.Rename("editor", "file", 0)
}

// TestReplaceLosesNoEdit has another process change the file before each operation of the disk
// while it is replaced. Its work is there afterwards, and Replace says so unless the change came
// after ours.
func TestReplaceLosesNoEdit(t *testing.T) {
	for _, node := range []struct{ name, archive string }{
		{"a file", "-- w/file mode=0640 xattr=user.x=1 --\nold\n"},
		{"a link", "-- w/file link=old --\n"},
		{"nothing", "-- w/ --\n"},
	} {
		for to, with := range map[string]*host.Entry{"a file": replaced(), "a link": {Link: "ours"}, "nothing": nil} {
			if node.name == to && to == "nothing" {
				continue
			}
			for what, edit := range edits() {
				for _, plain := range []bool{false, true} {
					if node.name == "nothing" && what == "removed" {
						continue
					}
					t.Run(fmt.Sprintf("%s to %s, %s, plain %t", node.name, to, what, plain), func(t *testing.T) {
						lost, refused, at := 0, 0, 0
						for ; ; at++ {
							n := simulated(t, "-- sim.toml --\nlive = false\n"+node.archive)
							if plain {
								n.PlainRenames()
							}
							as := seen(t, n, "/w/file")
							n.Meddle(at, func(root files.Folder) {
								dir := must.Get(root.Folder("w"))(t)
								must.OK(t, edit.do(dir))
							})
							err := n.Replace("/w/file", with, as)
							if !n.Meddled() {
								must.OK(t, err)
								break
							}
							if err != nil {
								refused++
							}
							check.That(t, err == nil || errors.As(err, new(host.Changed)) || errors.Is(err, fs.ErrInvalid), "before operation %d: %v", at, err)
							if got := show(t, n, "/w/file"); !edit.shows(got) {
								lost++
								check.That(t, plain, "before operation %d the change is lost (%v): %s", at, err, got)
							}
							left := temps(t, n)
							check.That(t, len(left) == 0, "before operation %d: left %v (%v)", at, left, err)
						}

						check.That(t, refused >= 5 && refused != at, "refused %d times of %d", refused, at)
						if lost > 5 { // between the last look's operations and a rename that cannot exchange
							t.Errorf("lost at %d of %d operations", lost, at)
						}
					})
				}
			}
		}
	}
}

// TestReplace replaces, makes and removes, and refuses what is not as expected, in time and just
// too late.
func TestReplace(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.Mkdir("/w", ownedBySelf(0o755)))
		with := &host.Entry{Data: []byte("ours\n"), Attr: ownedBySelf(0o604)}
		for name, next := range map[string]*host.Entry{"/w/a": with, "/w/b": {Link: "ours"}, "/w/c": nil} {
			must.OK(t, h.WriteFile(name, []byte("old\n"), ownedBySelf(0o640)))
			old := show(t, h, name)
			what := "cannot write " + name + ": it was changed while gpuadm was writing it"
			if next == nil {
				what = "cannot remove " + name + ": it was changed while gpuadm was removing it"
			} else if next.Link != "" {
				what = "cannot make link " + name + ": it was changed while gpuadm was writing it"
			}

			err := h.Replace(name, next, func(*host.Entry) bool { return false })
			got := show(t, h, name)
			check.That(t, errors.As(err, new(host.Changed)) && err.Error() == what && got == old, "%v: %s", err, got)
			// The first check agrees, then the file is changed: only the check of the result can
			// see that.
			as, looks := seen(t, h, name), 0
			err = h.Replace(name, next, func(found *host.Entry) bool {
				if looks++; looks == 1 {
					tamper(t, h, name)
					return true
				}
				return as(found)
			})
			got = show(t, h, name)
			check.That(t, errors.As(err, new(host.Changed)) && looks == 2 && strings.HasSuffix(got, ";theirs|"), "%s, %d looks: %v: %s", name, looks, err, got)
			must.OK(t, h.Replace(name, next, seen(t, h, name)))
			want := "nothing"
			if next != nil && next.Link == "" {
				want = fmt.Sprintf("-rw----r--;%d:%d;map[];ours\n|", ownedBySelf(0).UID, ownedBySelf(0).GID)
			} else if next != nil {
				want = "-> ours"
			}

			got = show(t, h, name)
			check.That(t, strings.HasSuffix(got, want), "%s, want %s", got, want)
		}

		must.OK(t, h.Replace("/w/new", with, seen(t, h, "/w/new")))
		must.OK(t, h.Replace("/w/b", with, seen(t, h, "/w/b"))) // a link is itself replaced
		err := h.Replace("/w/none", nil, agree)
		check.That(t, errors.Is(err, fs.ErrNotExist), "removed what is not there: %v", err)
		err = h.Replace("/w", with, agree)
		check.That(t, errors.Is(err, syscall.EISDIR), "replaced a folder: %v", err)
		names, err := h.ReadDir("/w")
		check.That(t, slices.Equal(names, []string{"a", "b", "new"}), "%q (%v)", names, err)
	})
}

// tamper is another process that changes a file while gpuadm is at work on it.
func tamper(t *testing.T, h host.Host, name string) {
	t.Helper()
	do := func(dir files.Folder) {
		check.OK(t, dir.Unlink(name[len("/w/"):]))
		file, err := dir.Create(name[len("/w/"):])
		must.OK(t, err)
		_, err = file.Write([]byte("theirs"))
		must.OK(t, err)
		must.OK(t, file.Close())
	}

	if n, ok := h.(*simhost.Node); ok {
		n.Meddle(0, func(root files.Folder) {
			dir := must.Get(root.Folder("w"))(t)
			do(dir)
		})
		return
	}

	dir := must.Get(local.FolderOf(h.Root() + "/w"))(t)
	defer dir.Close()
	do(dir)
}

// TestReplaceFallsBack: what an exchange says on a disk that knows none leads to a plain rename,
// all else does not.
func TestReplaceFallsBack(t *testing.T) {
	for err, falls := range map[error]bool{
		unix.EINVAL: true, unix.ENOSYS: true, unix.EOPNOTSUPP: true, unix.EPERM: true, unix.ENOSPC: false, unix.EIO: false, unix.EROFS: false,
	} {
		whole := simulated(t, oldNode)
		must.OK(t, whole.Replace("/w/file", replaced(), agree))
		n := simulated(t, oldNode)
		n.Fail(whole.Touches()-3, err) // then the old one is removed, and the folder synced
		got := n.Replace("/w/file", replaced(), agree)
		check.That(t, falls == (got == nil) && (falls || errors.Is(got, err)), "%v: %v", err, got)
	}
}

// TestReplaceKeepsTheNewest: an old file that cannot be removed goes back, but not over what
// another process has made since.
func TestReplaceKeepsTheNewest(t *testing.T) {
	n := simulated(t, oldNode)
	looks := 0
	err := n.Replace("/w/file", replaced(), func(*host.Entry) bool {
		if looks++; looks == 2 { // the exchange is made
			tamper(t, n, "/w/file")
			n.Fail(n.Touches(), syscall.EIO)
		}
		return true
	})
	got := show(t, n, "/w/file")
	check.That(t, errors.Is(err, syscall.EIO) && strings.HasSuffix(got, ";theirs|"), "%v: %s", err, got)
	left := temps(t, n)
	check.That(t, len(left) == 0, "left %v", left)
}

// TestReplaceStrays: a change that cannot be given its name back stays, and the error says where.
func TestReplaceStrays(t *testing.T) {
	for _, with := range []*host.Entry{replaced(), nil} {
		n := simulated(t, oldNode)
		looks := 0
		err := n.Replace("/w/file", with, func(*host.Entry) bool {
			if looks++; looks == 2 {
				n.Fail(n.Touches(), syscall.EIO)
			}
			return looks == 1
		})
		left := temps(t, n)
		must.That(t, len(left) == 1 && errors.As(err, new(host.Changed)) && strings.Contains(err.Error(), left[0]), "%v: left %v", err, left)
		got := show(t, n, "/w/"+left[0])
		check.That(t, strings.HasSuffix(got, ";old\n|"), "%s", got)
	}
}

// TestReplaceRefusedForGood: what went back stays there if the power is cut right after.
func TestReplaceRefusedForGood(t *testing.T) {
	for _, with := range []*host.Entry{replaced(), nil} {
		for _, loss := range losses() {
			n := simulated(t, oldNode)
			as, looks := seen(t, n, "/w/file"), 0
			err := n.Replace("/w/file", with, func(found *host.Entry) bool {
				if looks++; looks == 1 {
					tamper(t, n, "/w/file")
					return true
				}
				return as(found)
			})
			n.Boot(loss)
			got := show(t, n, "/w/file")
			check.That(t, errors.As(err, new(host.Changed)) && strings.HasSuffix(got, ";theirs|"), "%v: %v: %s", loss, err, got)
		}
	}
}

// TestMkdirReplacesNothing: a folder that another process makes meanwhile is theirs.
func TestMkdirReplacesNothing(t *testing.T) {
	for at := 0; ; at++ {
		n := simulated(t, oldNode)
		made := error(nil)
		n.Meddle(at, func(root files.Folder) {
			dir := must.Get(root.Folder("w"))(t)
			made = dir.Mkdir("new")
		})
		err := n.Mkdir("/w/new", host.Attr{Mode: 0o755})
		if !n.Meddled() {
			must.OK(t, err)
			return
		}
		check.That(t, (made == nil) != (err == nil) && (err == nil || errors.Is(err, fs.ErrExist)), "before operation %d: %v, theirs %v", at, err, made)
	}
}

// TestRename gives another name in the folder, and never takes one.
func TestRename(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		must.OK(t, h.Mkdir("/w", ownedBySelf(0o755)))
		must.OK(t, h.WriteFile("/w/a", []byte("a"), ownedBySelf(0o600)))
		must.OK(t, h.WriteFile("/w/b", []byte("b"), ownedBySelf(0o600)))
		err := h.Rename("/w/a", "/w/b")
		check.That(t, errors.Is(err, fs.ErrExist) && err.Error() == "cannot rename /w/a: file exists", "%v", err)
		for _, to := range []string{"/a", "/w/../a", "/w/..", "/w/b/", "c"} {
			err := h.Rename("/w/a", to)
			check.That(t, err != nil && err.Error() == "cannot rename /w/a: "+to+" is not in the same folder", "%v", err)
		}

		err = h.Rename("/w/none", "/w/c")
		check.That(t, errors.Is(err, fs.ErrNotExist), "%v", err)
		must.OK(t, h.Rename("/w/a", "/w/c"))
		names, err := h.ReadDir("/w")
		check.That(t, slices.Equal(names, []string{"b", "c"}) && read(t, h, "/w/c") == "a" && read(t, h, "/w/b") == "b", "%q (%v)", names, err)
	})
	n := simulated(t, oldNode)
	n.PlainRenames()
	err := n.Rename("/w/file", "/w/log")
	check.That(t, errors.Is(err, fs.ErrExist), "%v", err)
	must.OK(t, n.Rename("/w/file", "/w/aside"))
}
