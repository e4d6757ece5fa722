// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func node(t *testing.T, archive string) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte("-- sim.toml --\nlive = false\n" + archive))
	must.OK(t, err)
	return n
}

// edit replaces a file in /etc as editors do, or writes to it in place.
func edit(root files.Folder, name string, inPlace bool) error {
	dir, err := root.Folder("etc")
	if err != nil {
		return err
	}
	var file files.File
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

// rewrites are the ways in which a thing replaces a file: from what lies there, by what is wanted,
// with edits of which file.
func rewrites(t *testing.T) []rewrite {
	exact := func(name string) converge.Want {
		return things.Exact(name, []byte("ours\n"), 0o640, "")
	}
	public, err := os.ReadFile("testdata/ed25519.asc")
	must.OK(t, err)
	return []rewrite{
		{"file", "-- etc/x --\nold\n", "x", exact("/etc/x")},
		{"new file", "-- etc/ --\n", "x", exact("/etc/x")},
		{"file behind a link", "-- etc/l link=x --\n-- etc/x --\nold\n", "x", exact("/etc/l")},
		{"link to a file", "-- etc/l link=x --\n-- etc/x --\nold\n", "l", exact("/etc/l")},
		{"removed file", "-- etc/x --\nold\n", "x", removed(things.NewFile("/etc/x", nil))},
		{"removed link to a file", "-- etc/l link=x --\n-- etc/x --\nold\n", "l", removed(things.NewFile("/etc/l", nil))},
		{"key", "-- etc/ --\n-- srv/k --\n" + string(public), "x", things.Key("/etc/x", "/srv/k", edKey, host.Via{}, "")},
		{
			"removed key", "-- etc/x --\n" + string(public), "x",
			removed(things.NewKey(converge.Ref{
				Kind: "key",
				Name: "/etc/x",
				Form: "/srv/k",
			})),
		},
	}
}

// removed is a want to remove a thing, as undo has it.
func removed(thing converge.Thing) converge.Want {
	return converge.Want{
		Thing: thing,
		To:    func(converge.State) (converge.State, error) { return "", nil },
	}
}

type rewrite struct {
	name, archive, edited string
	want                  converge.Want
}

// TestMakeLosesNoEdit has another process edit the file before each operation of the disk from the
// look on: its edit is there afterwards, and where ours is not, the error says that and what to do.
func TestMakeLosesNoEdit(t *testing.T) {
	for i, row := range rewrites(t) {
		for _, inPlace := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in place %t", row.name, inPlace), func(t *testing.T) {
				refused, at := 0, 0
				for ; ; at++ {
					w, n := rewrites(t)[i].want, node(t, row.archive)
					found, err := w.Look(t.Context(), n)
					must.OK(t, err)
					to, err := w.To(found)
					must.OK(t, err)
					n.Meddle(at, func(root files.Folder) {
						must.OK(t, edit(root, row.edited, inPlace))
					})
					err = w.Make(t.Context(), n, to)
					if !n.Meddled() {
						must.OK(t, err)
						n.Meddle(0, nil)
						now, err := w.Look(t.Context(), n)
						check.That(t, now == to && err == nil, "made %q (%v), want %q", now, err, to)
						break
					}

					told := (*trouble.Error)(nil)
					if errors.As(err, &told) && strings.Contains(err.Error(), "it was changed while gpuadm was ") {
						refused++
						check.That(t, slices.Equal(told.Try, []string{"run the same command again"}) && errors.As(err, new(host.Changed)),
							"before operation %d: %v, try %q", at, err, told.Try)
					} else if err != nil {
						t.Errorf("before operation %d: %v", at, err)
					}

					data, err := n.ReadFile("/etc/" + row.edited)
					check.That(t, strings.HasSuffix(string(data), "theirs"), "before operation %d: the edit is lost: %q (%v)", at, data, err)
					names, _ := n.ReadDir("/etc")
					check.That(t, !slices.ContainsFunc(names, func(s string) bool {
						return strings.HasPrefix(s, ".gpuadm-")
					}), "before operation %d: left %q", at, names)
				}

				check.That(t, refused >= 2 && refused != at, "refused %d times of %d", refused, at)
			})
		}
	}

	w, n := things.Exact("/etc/x", []byte("ours\n"), 0o640, ""), node(t, "-- etc/x --\nold\n")
	found, err := w.Look(t.Context(), n)
	must.OK(t, err)
	to, err := w.To(found)
	must.OK(t, err)
	must.OK(t, n.WriteFile("/etc/x", []byte("theirs\n"), host.Attr{Mode: 0o644}))
	err = w.Make(t.Context(), n, to)
	check.That(t, err != nil && err.Error() == "cannot write /etc/x: it was changed while gpuadm was writing it", "%v", err)
}

// TestMakeBothWays goes from each state of a name to each other and back, as apply and undo do. On
// the way back it has not looked: then Make looks itself.
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
			must.OK(t, err)
			before, err := w.Look(t.Context(), n)
			must.OK(t, err)
			for _, want := range []converge.State{after, before} {
				must.OK(t, w.Make(t.Context(), n, want))
				now, err := things.NewFile("/etc/x", nil).Look(t.Context(), n)
				check.That(t, now == want && err == nil, "from %q to %q: made %q (%v), want %q", from, to, now, err, want)
			}
		}
	}
}

// TestFolderWithLeftovers: what a killed gpuadm left in a folder is no reason for the folder to
// stay.
func TestFolderWithLeftovers(t *testing.T) {
	for leftover, stays := range map[string]bool{
		"-- etc/f/.gpuadm-x.tmp --\n": false, "-- etc/f/.gpuadm-x.tmp/ --\n": false, "-- etc/f/.gpuadm-x.tmp link=y --\n": false,
		"-- etc/f/theirs --\n": true,
	} {
		n := node(t, "-- etc/f/ --\n"+leftover)
		err := things.NewFolder("/etc/f").Make(t.Context(), n, "")
		_, gone := n.Stat("/etc/f")
		check.That(t, stays == errors.As(err, new(converge.Stays)) && stays == (gone == nil) && (stays || err == nil), "%s: %v", leftover, err)
	}
}
