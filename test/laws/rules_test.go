// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// reader is a thing with files that belong to its identity.
type reader struct{ pkgThing }

func (r reader) Ref() converge.Ref {
	return converge.Ref{
		Kind:  "reader",
		Name:  r.name,
		Reads: []string{"/etc/d.conf"},
	}
}

// TestReaderIsRecognized: what gpuadm has made of a thing that reads files is known as that of the
// want.
func TestReaderIsRecognized(t *testing.T) {
	n := node(t)
	first := n.Tree(converge.Home, "/srv")
	e := engineOf(t, stage(converge.Want{Thing: reader{pkgThing{"key"}}, To: to("1")}))
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "reader" && len(ref.Reads) == 1 {
			return reader{pkgThing{ref.Name}}, nil
		}
		return kinds(ref)
	}

	apply(t, n, e)
	res := apply(t, n, e)
	check.That(t, res.Run == "", "the second apply made %v", res.Made)
	undo(t, n, e, "")
	compare(t, "undone", first, n.Tree(converge.Home, "/srv"))
}

// TestJudgeOfAChangedSpec: the judge must not rely on what an earlier spec put into the file. The
// judge gets the state from which the want was computed: the file without gpuadm's part.
func TestJudgeOfAChangedSpec(t *testing.T) {
	n := node(t)
	var judged []string
	for _, word := range []string{"one", "two", "two"} {
		f := things.NewFile("/etc/d.conf", nil).Validated(func(_ context.Context, _ host.View, before, after []byte) error {
			judged = append(judged, fmt.Sprintf("%s to %s", before, after))
			return nil
		})
		apply(t, n, engineOf(t, stage(things.Edited(f, func(found []byte) ([]byte, error) {
			return append(slices.Clip(found[:4]), word...), nil
		}, ""))))
	}

	want := []string{"old\n to old\none", "old\n to old\ntwo"}
	check.That(t, slices.Equal(judged, want), "judged %q, want %q", judged, want)
}

// Law 10: the journal says by which merger an edit is taken out, for every file of every stage.
// Undo guesses nothing from a name.
func TestJournalNamesTheForm(t *testing.T) {
	seen := map[string]int{}
	for _, c := range lawCases(t) {
		n := c.boot(t)
		apply(t, n, c.wish.engine(t))
		for _, rec := range converge.ReadJournal(n).Records {
			if rec.Change == nil || rec.Change.Kind != "file" {
				continue
			}
			seen[rec.Change.Form]++
			ref := converge.Ref{
				Kind: "file",
				Name: rec.Change.Name,
				Form: rec.Change.Form,
			}
			_, err := thingOf(ref)
			check.That(t, err == nil && ref.Form != "", "%s: %s is journalled with the form %q: %v", c.name, ref.Name, ref.Form, err)
		}
	}

	check.That(t, seen["toml"] != 0 && seen["whole"] != 0 && seen["kubelet"] != 0, "the law was hardly tested: %v", seen)
	_, err := thingOf(converge.Ref{
		Kind: "file",
		Name: "/etc/x.toml",
		Form: "of a newer gpuadm",
	})
	check.That(t, err != nil, "a form that is not known is guessed")
}

// TestSyncsOfAFirstEdit: most of the time of an edit goes to waiting for the disk. The first edit
// on a machine waits for the names of gpuadm's folder, of the folder of blobs in it and of the
// journal; every edit for two blobs, their names, the journal's line, the new file, its name, and
// the journal's end.
func TestSyncsOfAFirstEdit(t *testing.T) {
	n := node(t)
	put(t, n, "/srv/a", "zero\n")
	for _, edit := range []struct {
		what, text string
		most       int
	}{{"the first", "one\n", 10}, {"another", "two\n", 6}} {
		before := n.Syncs()
		apply(t, n, engineOf(t, stage(things.Exact("/srv/a", []byte(edit.text), 0o644, ""))))
		syncs := n.Syncs() - before
		check.That(t, syncs <= edit.most && syncs >= 5, "%s edit waits for the disk %d times, not at most %d", edit.what, syncs, edit.most)
	}
}

// Packages and installers that no change needs are removed; a change keeps those of its own kind
// alone.
func TestPruneRemovesEveryKind(t *testing.T) {
	names := map[string]bool{ // and whether it stays
		packages.Store + "/kernel_570.1_amd64.deb": true, packages.Store + "/kernel_580.1_amd64.deb": false,
		drivers.Runfiles + "/580.1-aa.run": true, drivers.Runfiles + "/570.1-bb.run": false,
	}
	text := "-- var/lib/dpkg/status --\nPackage: other\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n"
	for name := range names {
		text += "-- " + name[1:] + " --\n"
	}
	n := machine{"kept", []byte(text)}.boot(t)
	needed := []converge.Change{{
		Ref:    converge.Ref{Kind: "package", Name: "kernel"},
		Before: "570.1",
	}, {Ref: converge.Ref{Kind: "runfile", Name: "kernel"}, Before: "580.1 open"}}
	must.OK(t, stages.Prune(t.Context(), n, needed))
	for name, stays := range names {
		_, err := n.Stat(name)
		check.That(t, (err == nil) == stays, "%s: %v, want it to stay: %t", name, err, stays)
	}
}

// TestEditsMeanwhileAreNotLost has an editor save a file before each operation of the disk while
// apply, and then undo, are at work on it. Its text is in the file afterwards, or undo brings it
// back.
func TestEditsMeanwhileAreNotLost(t *testing.T) {
	for _, command := range []string{"apply", "undo"} {
		for at := 0; ; at++ {
			n := node(t)
			must.OK(t, n.WriteFile("/etc/a", []byte("old\n"), host.Attr{Mode: 0o644}))
			e := engineOf(t, stage(things.Exact("/etc/a", []byte("ours\n"), 0o644, "")))
			if command == "undo" {
				apply(t, n, e)
			}
			n.Meddle(at, func(root files.Folder) {
				dir := must.Get(root.Folder("etc"))(t)
				file, err := dir.Create("editor")
				must.OK(t, err)
				must.Get(file.Write([]byte("theirs\n")))(t)
				must.OK(t, dir.Rename("editor", "a", 0))
			})
			var err error
			if command == "apply" {
				_, err = e.Apply(t.Context(), n)
			} else {
				_, err = e.Undo(t.Context(), n, "all", nil)
			}

			if !n.Meddled() {
				break
			}
			data, _ := n.ReadFile("/etc/a")
			if strings.Contains(string(data), "theirs") {
				continue
			}
			if command == "apply" {
				_, _ = e.Undo(t.Context(), n, "all", nil)
				if back, _ := n.ReadFile("/etc/a"); strings.Contains(string(back), "theirs") {
					continue
				}
			}

			t.Errorf("%s, before operation %d: the edit is lost: %q (%v)", command, at, data, err)
		}
	}
}

// What is planted as a secret, in any shape that engines' configurations have, never shows in a
// diff.
func TestDiffShowsNoSecrets(t *testing.T) {
	const planted = "hunter2SECRET"
	for _, text := range []string{
		`password = "hunter2SECRET"`,
		`auth = { password = "hunter2SECRET" }`,
		`configs = { "r" = { auth = { token = "hunter2SECRET" } } }`,
		`endpoint = ["https://robot:hunter2SECRET@mirror.example"]`,
		`endpoint = ["https://hunter2SECRET@mirror.example"]`,
		`"X-Api-Key" = ["hunter2SECRET"]`,
		`Authorization = ["Basic hunter2SECRET"]`,
		"password = \"\"\"\nline\nhunter2SECRET\n\"\"\"",
		"tokens = [\n  \"hunter2SECRET\",\n]",
		"private_key = '''\n-----BEGIN KEY-----\nhunter2SECRET\n-----END KEY-----\n'''",
		"x = '''\n-----BEGIN KEY-----\nhunter2SECRET\n-----END KEY-----\n'''",
		`{"auths": {"r": {"auth": "hunter2SECRET"}}}`,
		`identitytoken: hunter2SECRET`,
		`PASSWORD="hunter2SECRET" # why`,
	} {
		before, after := []byte("a = 1\n"+text+"\nb = 2\n"), []byte("a = 2\n"+text+"\nb = 3\n")
		for _, d := range []string{diff.Texts("/etc/x", nil, after), diff.Texts("/etc/x", before, after), diff.Texts("/etc/x", before, []byte("a = 1\n"))} {
			check.That(t, !strings.Contains(d, planted) && d != "", "%s\nshows\n%s", text, d)
		}
	}

	check.Has(t, diff.Texts("/etc/x", []byte("a = 1\n"), []byte("a = 1\nsandbox_image = \"x\"\n")), "sandbox_image", "too much is masked:")
}
