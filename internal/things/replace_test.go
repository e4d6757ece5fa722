// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func node(t *testing.T, archive string) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte("-- sim.toml --\nlive = false\n" + archive))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// edit replaces a file in /etc as editors do, or writes to it in place.
func edit(root host.Folder, name string, inPlace bool) error {
	dir, err := root.Folder("etc")
	if err != nil {
		return err
	}
	var file host.File
	if inPlace {
		file, err = dir.OpenAppend(name)
	}
	if !inPlace || err != nil {
		if file, err = dir.Create("editor"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dir.Rename("editor", name, 0)) }()
	}
	_, err = file.Write([]byte("theirs"))
	return err
}

// rewrites are the ways in which a thing replaces a file: from what lies there, by what is wanted, with edits of which file.
func rewrites(t *testing.T) []rewrite {
	exact := func(name string) converge.Want { return things.Exact(name, []byte("ours\n"), 0o640, "") }
	public, err := os.ReadFile("testdata/ed25519.asc")
	must(t, err)
	return []rewrite{
		{"file", "-- etc/x --\nold\n", "x", exact("/etc/x")},
		{"new file", "-- etc/ --\n", "x", exact("/etc/x")},
		{"file behind a link", "-- etc/l link=x --\n-- etc/x --\nold\n", "x", exact("/etc/l")},
		{"link to a file", "-- etc/l link=x --\n-- etc/x --\nold\n", "l", exact("/etc/l")},
		{"removed file", "-- etc/x --\nold\n", "x", removed(things.NewFile("/etc/x", nil))},
		{"removed link to a file", "-- etc/l link=x --\n-- etc/x --\nold\n", "l", removed(things.NewFile("/etc/l", nil))},
		{
			"removed secret", "-- etc/x mode=0600 nonl --\nold\n", "x",
			removed(things.NewSecret("/etc/x")),
		},
		{"key", "-- etc/ --\n-- srv/k --\n" + string(public), "x", things.Key("/etc/x", "/srv/k", edKey, host.Via{}, "")},
		{
			"removed key", "-- etc/x --\n" + string(public), "x",
			removed(things.NewKey("/etc/x from /srv/k")),
		},
	}
}

// removed is a want to remove a thing, as undo has it.
func removed(thing converge.Thing) converge.Want {
	return converge.Want{Thing: thing, To: func(converge.State) (converge.State, error) { return "", nil }}
}

type rewrite struct {
	name, archive, edited string
	want                  converge.Want
}

// TestMakeLosesNoEdit has another process edit the file before each operation of the disk from the look on: its edit is there
// afterwards, and where ours is not, the error says that and what to do.
func TestMakeLosesNoEdit(t *testing.T) {
	for i, row := range rewrites(t) {
		for _, inPlace := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in place %t", row.name, inPlace), func(t *testing.T) {
				refused, at := 0, 0
				for ; ; at++ {
					w, n := rewrites(t)[i].want, node(t, row.archive)
					found, err := w.Look(t.Context(), n)
					must(t, err)
					to, err := w.To(found)
					must(t, err)
					n.Meddle(at, func(root host.Folder) { must(t, edit(root, row.edited, inPlace)) })
					err = w.Make(t.Context(), n, to)
					if !n.Meddled() {
						must(t, err)
						n.Meddle(0, nil)
						if now, err := w.Look(t.Context(), n); now != to || err != nil {
							t.Errorf("made %q (%v), want %q", now, err, to)
						}
						break
					}
					told := (*trouble.Error)(nil)
					if errors.As(err, &told) && strings.Contains(err.Error(), "it was changed while gpuadm was ") {
						refused++
						if !slices.Equal(told.Try, []string{"run the same command again"}) || !errors.As(err, new(host.Changed)) {
							t.Errorf("before operation %d: %v, try %q", at, err, told.Try)
						}
					} else if err != nil {
						t.Errorf("before operation %d: %v", at, err)
					}
					if data, err := n.ReadFile("/etc/" + row.edited); !strings.HasSuffix(string(data), "theirs") {
						t.Errorf("before operation %d: the edit is lost: %q (%v)", at, data, err)
					}
					if names, _ := n.ReadDir("/etc"); slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, ".gpuadm-") }) {
						t.Errorf("before operation %d: left %q", at, names)
					}
				}
				if refused < 2 || refused == at {
					t.Errorf("refused %d times of %d", refused, at)
				}
			})
		}
	}
	w, n := things.Exact("/etc/x", []byte("ours\n"), 0o640, ""), node(t, "-- etc/x --\nold\n")
	found, err := w.Look(t.Context(), n)
	must(t, err)
	to, err := w.To(found)
	must(t, err)
	must(t, n.WriteFile("/etc/x", []byte("theirs\n"), host.Attr{Mode: 0o644}))
	if err := w.Make(t.Context(), n, to); err == nil || err.Error() != "cannot write /etc/x: it was changed while gpuadm was writing it" {
		t.Error(err)
	}
}

// TestMakeBothWays goes from each state of a name to each other and back, as apply and undo do. On the way back it has not looked:
// then Make looks itself.
func TestMakeBothWays(t *testing.T) {
	archives := []string{
		"-- etc/ --\n", "-- etc/x --\none\n", "-- etc/x mode=0600 --\ntwo\n", "-- etc/x link=y --\n",
		"-- etc/x link=y --\n-- etc/y --\nthree\n", "-- etc/x link=z --\n-- etc/z --\n",
	}
	for i, from := range archives {
		for j, to := range archives {
			if i == j {
				continue
			}
			w, n := things.NewFile("/etc/x", nil), node(t, from)
			after, err := w.Look(t.Context(), node(t, to))
			must(t, err)
			before, err := w.Look(t.Context(), n)
			must(t, err)
			for _, want := range []converge.State{after, before} {
				must(t, w.Make(t.Context(), n, want))
				if now, err := things.NewFile("/etc/x", nil).Look(t.Context(), n); now != want || err != nil {
					t.Errorf("from %q to %q: made %q (%v), want %q", from, to, now, err, want)
				}
			}
		}
	}
}

// TestWritable: the plan refuses what chattr(1) keeps from being written.
func TestWritable(t *testing.T) {
	n := node(t, `
-- etc/x chattr=i --
old
-- etc/log chattr=a --
old
-- etc/free --
old
-- etc/l link=x --
-- etc/closed/ chattr=i --
-- etc/closed/y --
old
-- etc/far link=closed/y --
-- etc/dir link=closed --
-- etc/grows/ chattr=a --
`)
	exact := func(name string) converge.Want { return things.Exact(name, []byte("new\n"), 0o640, "") }
	for _, row := range []struct {
		want         converge.Want
		refused, try string
	}{
		{exact("/etc/x"), "cannot write /etc/x: it is immutable", "chattr -i /etc/x"},
		{removed(things.NewFile("/etc/x", nil)), "cannot remove /etc/x: it is immutable", "chattr -i /etc/x"},
		{exact("/etc/log"), "cannot write /etc/log: it is append-only", "chattr -a /etc/log"},
		{exact("/etc/l"), "cannot write /etc/l: /etc/x, to which it leads, is immutable", "chattr -i /etc/x"},
		{removed(things.NewFile("/etc/l", nil)), "", ""},
		{exact("/etc/closed/y"), "cannot write /etc/closed/y: the folder /etc/closed is immutable", "chattr -i /etc/closed"},
		{exact("/etc/closed/new"), "cannot write /etc/closed/new: the folder /etc/closed is immutable", "chattr -i /etc/closed"},
		{exact("/etc/far"), "cannot write /etc/far: the folder /etc/closed is immutable", "chattr -i /etc/closed"},
		{removed(things.NewFile("/etc/dir/y", nil)), "cannot remove /etc/dir/y: the folder /etc/dir is immutable", "chattr -i /etc/dir"},
		{removed(things.NewSecret("/etc/closed/y")), "cannot remove /etc/closed/y: the folder /etc/closed is immutable", "chattr -i /etc/closed"},
		{exact("/etc/grows/new"), "cannot write /etc/grows/new: the folder /etc/grows is append-only", "chattr -a /etc/grows"},
		{things.Folders("/etc/closed/new", "")[2], "cannot write /etc/closed/new: the folder /etc/closed is immutable", "chattr -i /etc/closed"},
		{exact("/etc/free"), "", ""},
		{exact("/etc/new"), "", ""},
		{exact("/etc/none/new"), "", ""},
	} {
		before, err := row.want.Look(t.Context(), n)
		must(t, err)
		after, err := row.want.To(before)
		must(t, err)
		err = row.want.Thing.(converge.Prover).Prove(t.Context(), n, before, after)
		refused(t, row.want.Ref().Name, err, row.refused, in(n, row.try))
	}
}

// in is a command as it is typed for a machine in a folder: the same on / would be another machine's.
func in(v host.View, command string) string {
	return strings.Replace(command, " /", " "+v.Root()+"/", 1)
}

func refused(t *testing.T, name string, err error, what, try string) {
	t.Helper()
	told := (*trouble.Error)(nil)
	switch {
	case what == "" && err != nil:
		t.Errorf("%s is refused: %v", name, err)
	case what != "" && (!errors.As(err, &told) || told.What != what || !slices.Equal(told.Try, []string{try})):
		t.Errorf("%s: %+v, want %s", name, err, what)
	}
}

// TestWritableReal is the same on a real file, where the file system has such attributes and the test may set them.
func TestWritableReal(t *testing.T) {
	dir := t.TempDir()
	h, err := host.Open(dir)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "x"), []byte("old\n"), 0o644))
	f, err := os.Open(filepath.Join(dir, "x"))
	must(t, err)
	defer f.Close()
	w := things.Exact("/x", []byte("new\n"), 0o644, "")
	is, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS) // others, such as ext4's extents, cannot be taken off at any time
	if err != nil {
		t.Skip("no attributes here:", err)
	}
	for flag, row := range map[int][2]string{
		unix.STATX_ATTR_IMMUTABLE: {"cannot write /x: it is immutable", "chattr -i /x"},
		unix.STATX_ATTR_APPEND:    {"cannot write /x: it is append-only", "chattr -a /x"},
	} {
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(is)|flag); err != nil {
			t.Skip("no immutable files here:", err)
		}
		before, err := w.Look(t.Context(), h)
		must(t, err)
		after, err := w.To(before)
		must(t, err)
		err = w.Thing.(converge.Prover).Prove(t.Context(), h, before, after)
		must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(is)))
		refused(t, "/x", err, row[0], in(h, row[1]))
		refused(t, "/x", w.Thing.(converge.Prover).Prove(t.Context(), h, before, after), "", "")
	}
}

// TestFolderWithLeftovers: what a killed gpuadm left in a folder is no reason for the folder to stay.
func TestFolderWithLeftovers(t *testing.T) {
	for leftover, stays := range map[string]bool{
		"-- etc/f/.gpuadm-x.tmp --\n": false, "-- etc/f/.gpuadm-x.tmp/ --\n": false, "-- etc/f/.gpuadm-x.tmp link=y --\n": false,
		"-- etc/f/theirs --\n": true,
	} {
		n := node(t, "-- etc/f/ --\n"+leftover)
		err := things.NewFolder("/etc/f").Make(t.Context(), n, "")
		if _, gone := n.Stat("/etc/f"); stays != errors.As(err, new(converge.Stays)) || stays != (gone == nil) || !stays && err != nil {
			t.Errorf("%s: %v", leftover, err)
		}
	}
}
