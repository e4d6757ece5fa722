// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// An undo that failed and the one that then ended well have undone the same: gpuadm owns nothing of
// either any more. What the spec no longer asks for does not come back, and no bytes are kept for
// it.
func TestUndoAfterFailedUndo(t *testing.T) {
	ctx := context.Background()
	a, b := things.Exact("/srv/a", []byte("a\n"), 0o644, ""), things.Exact("/srv/b", []byte("b\n"), 0o644, "")
	failed := 0
	for touch := range 12 {
		n := node(t)
		first := n.Tree(converge.Home)
		both := engineOf(t, stage(a, b))
		apply(t, n, both)
		n.Fail(n.Touches()+touch, syscall.EIO)
		if _, err := both.Undo(ctx, n, "", nil); err != nil {
			failed++
			undo(t, n, both, "")
		}
		compare(t, "undone", first, n.Tree(converge.Home))
		apply(t, n, engineOf(t, stage(b)))
		_, err := n.Stat("/srv/a")
		check.That(t, err != nil, "undo failed at touch %d: what was undone then and is not asked for is back", touch)
		undo(t, n, both, "")
		left := blobs(n)
		check.That(t, left <= 0, "undo failed at touch %d: %d unneeded blobs are kept", touch, left)
	}

	check.That(t, failed >= 4, "only %d undos failed", failed)
}

// inImage is a machine whose files are in a folder.
type inImage struct{ host.View }

func (inImage) Root() string { return "/mnt/image" }

// TestLostBytesOfAnImage: undo that lacks the bytes from before names the folder to restore, as it
// is outside the image.
func TestLostBytesOfAnImage(t *testing.T) {
	n := node(t)
	put(t, n, "/srv/a", "theirs\n")
	e := edition(t, 1)
	apply(t, n, e)
	for _, name := range must.Get(n.ReadDir(converge.Home + "/blobs"))(t) {
		must.OK(t, n.Remove(converge.Home+"/blobs/"+name))
	}

	_, err := e.PlanUndo(t.Context(), inImage{n}, "", nil)
	var refused *trouble.Error
	must.That(t, errors.As(err, &refused), "an undo without the bytes from before: %v", err)
	const want = "restore /mnt/image/var/lib/gpuadm from a backup"
	check.That(t, slices.Contains(refused.Try, want), "the advice: %q", refused.Try)
}

// An apply that failed and was rolled back whole has left nothing. When the run before it is undone
// too, nothing is kept for it; and what it had meant to make is made and released later as on a
// fresh machine.
func TestFailedApplyLeavesNothing(t *testing.T) {
	ctx := context.Background()
	a := func(text string) converge.Want {
		return things.Exact("/srv/a", []byte(text), 0o644, "")
	}
	b, c := things.Exact("/srv/b", []byte("b\n"), 0o644, ""), things.Exact("/srv/c", []byte("c\n"), 0o644, "")
	back := 0
	for touch := range 24 {
		n := node(t)
		first := n.Tree(converge.Home)
		apply(t, n, engineOf(t, stage(a("1\n"), b)))
		n.Fail(n.Touches()+touch, syscall.EIO)
		e := engineOf(t, stage(a("2\n"), b, c))
		e.Tell = func(ev converge.Event) {
			if ev.What == converge.Undone {
				back++
			}
		}

		if _, err := e.Apply(ctx, n); err == nil {
			continue
		}
		undo(t, n, e, "all")
		compare(t, "undone", first, n.Tree(converge.Home))
		left := blobs(n)
		check.That(t, left <= 0, "failed at touch %d: %d unneeded blobs are kept", touch, left)
		apply(t, n, engineOf(t, stage(a("2\n"), b)))
		apply(t, n, engineOf(t, stage(b)))
		_, err := n.Stat("/srv/a")
		check.That(t, err != nil, "failed at touch %d: what is no longer asked for stays", touch)
	}

	check.That(t, back >= 4, "only %d changes were rolled back", back)
}

// If a name to leave is given, the advice about another obstacle has a command line that leaves
// both.
func TestUndoLeavesBoth(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(things.Exact("/etc/a", []byte("a"), 0o644, ""), things.Exact("/etc/b", []byte("b"), 0o644, "")))
	apply(t, n, e)
	put(t, n, "/etc/a", "theirs")
	put(t, n, "/etc/b", "theirs")
	_, err := e.Undo(t.Context(), n, "", []string{"/etc/a"})
	tr := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &tr) && strings.Contains(strings.Join(tr.Try, "\n"), " --leave /etc/a --leave /etc/b"), "%#v", err)
	must.Get(e.Undo(t.Context(), n, "", []string{"/etc/a", "/etc/b"}))(t)
}

// The same command line goes on with an undo that was cut, and may be given again when all is
// undone.
func TestUndoLeavesAgain(t *testing.T) {
	n := node(t)
	e := engineOf(t, stage(things.Exact("/etc/a", []byte("a"), 0o644, ""), things.Exact("/etc/b", []byte("b"), 0o644, "")))
	apply(t, n, e)
	put(t, n, "/etc/a", "theirs")
	leave := []string{"/etc/a"}
	cut, stop := 0, make(chan struct{})
	e.Stop = stop
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Left {
			close(stop)
		}
	}

	if _, err := e.Undo(t.Context(), n, "", leave); errors.Is(err, converge.ErrStopped) {
		cut++
	}
	must.That(t, cut == 1, "not cut")
	e.Stop, e.Tell = nil, nil
	for range 2 {
		must.Get(e.Undo(t.Context(), n, "", leave))(t)
	}
}

// TestUndoNamesWhatAnEarlierRunLeft: a handler that another process changed stays when the spec
// drops it, and the undo of a later day still says so.
func TestUndoNamesWhatAnEarlierRunLeft(t *testing.T) {
	m := recordedAs(t, "debian12-containerd16")
	n := m.boot(t)
	apply(t, n, engine(t, sections["default"]))
	const file = "/etc/containerd/config.toml"
	text := must.Get(n.ReadFile(file))(t)
	changed := strings.Replace(string(text), `BinaryName = "/usr/bin/nvidia-container-runtime"`, `BinaryName = "/opt/theirs"`, 1)
	must.That(t, changed != string(text), "no handler in\n%s", text)
	must.OK(t, n.WriteFile(file, []byte(changed), host.Attr{Mode: 0o644}))
	apply(t, n, engine(t, sections["other"]))
	res := undo(t, n, engine(t, sections["other"]), "all")
	check.That(t, slices.ContainsFunc(res.Left, func(c converge.Line) bool {
		return strings.Contains(c.Cannot, "runtimes.nvidia is there")
	}), "left is %+v", res.Left)
	now, _ := n.ReadFile(file)
	check.That(t, strings.Contains(string(now), "/opt/theirs") && !strings.Contains(string(now), "nvidia-two"), "after undo:\n%s", now)
}

// Bytes that were kept for the way back and are gone, or have changed, are missed before anything
// is touched; the rest can be undone.
func TestUndoWithoutItsBytes(t *testing.T) {
	for name, spoil := range map[string]func(h host.Host, blob string) error{
		"gone":    func(h host.Host, blob string) error { return h.Remove(blob) },
		"changed": func(h host.Host, blob string) error { return h.WriteFile(blob, []byte("x"), host.Attr{Mode: 0o600}) },
	} {
		n := node(t)
		put(t, n, "/srv/a", "theirs\n")
		e := engineOf(t, stage(things.Exact("/srv/a", []byte("ours\n"), 0o644, ""), things.Exact("/srv/b", []byte("b\n"), 0o644, "")))
		apply(t, n, e)
		j, err := converge.ReadJournal(n), error(nil)
		must.OK(t, err)
		blob := converge.Home + "/blobs/" + strings.Fields(string(j.Runs()[0].Makes[0].Before))[2]
		must.OK(t, spoil(n, blob))
		all := n.Tree()
		check.That(t, plan(t, n, e).Now() == 0, "%s: an apply needs them", name)
		for _, plans := range []bool{true, false} {
			if plans {
				_, err = e.PlanUndo(t.Context(), n, "", nil)
			} else {
				_, err = e.Undo(t.Context(), n, "", nil)
			}

			tr := (*trouble.Error)(nil)
			must.That(t, errors.As(err, &tr) && strings.Contains(tr.What, "cannot undo file /srv/a: ") && strings.Contains(tr.What, path.Base(blob)), "%s: %v", name, err)
			try := strings.Join(tr.Try, "\n")
			check.That(t, strings.Contains(try, " --leave /srv/a") && !strings.Contains(try, "as we left it"), "%s: %q", name, try)
		}

		compare(t, name, all, n.Tree())
		_, err = e.Undo(t.Context(), n, "", []string{"/srv/a"})
		check.That(t, err == nil, "%s: %v", name, err)
		_, err = n.Stat("/srv/b")
		check.That(t, errors.Is(err, fs.ErrNotExist), "%s: the rest stays: %v", name, err)
	}
}

// A journal that cannot be read costs undo, which says so, and nothing else: the next change moves
// it aside.
func TestUnreadableJournal(t *testing.T) {
	n := node(t)
	if err := n.Mkdir(converge.Home, host.Attr{Mode: 0o700}); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	must.OK(t, n.Mkdir(journal, host.Attr{Mode: 0o700}))
	e := edition(t, 1)
	check.That(t, plan(t, n, e).Now() != 0, "the plan is empty")
	if s, err := e.Status(t.Context(), n); err != nil || !strings.Contains(s.Damage, journal) {
		t.Errorf("status: %v, damage %q", err, s.Damage)
	}
	if _, err := e.Undo(t.Context(), n, "", nil); err == nil || !strings.Contains(err.Error(), "cannot read "+journal) {
		t.Errorf("undo: %v", err)
	}
	apply(t, n, e)
	check.That(t, len(undo(t, n, e, "").Made) > 0, "what was changed after it cannot be undone")
	names, err := n.ReadDir(converge.Home)
	check.That(t, err == nil && slices.ContainsFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "journal.jsonl.unreadable-")
	}),
		"it is not kept aside: %v, %v", names, err)
}

// An undo that fails says at which stage.
func TestUndoSaysItsStage(t *testing.T) {
	failed := 0
	for touch := range 10 {
		n := node(t)
		e := edition(t, 1)
		apply(t, n, e)
		n.Fail(n.Touches()+touch, syscall.EROFS)
		e.Tell = func(ev converge.Event) {
			if ev.What == converge.Failed {
				failed++
				check.That(t, ev.Stage == "driver", "failed at %q", ev.Stage)
			}
		}

		e.Undo(t.Context(), n, "", nil)
	}

	check.That(t, failed >= 3, "%d undos failed", failed)
}

// Undo of an unknown run lists the runs that there are, whether or not there is a spec to ask
// status with.
func TestUndoToNoRun(t *testing.T) {
	n := node(t)
	e := edition(t, 1)
	undoable := func() string {
		t.Helper()
		_, err := e.Undo(t.Context(), n, "runtime", nil)
		tr := (*trouble.Error)(nil)
		must.That(t, errors.As(err, &tr) && len(tr.Because) > 0, "got %+v", err)
		return tr.Because[0]
	}

	check.Equal(t, undoable(), "no run is left to undo here", "before any run:")
	var all []string
	for i := range 8 {
		all = append(all, apply(t, n, edition(t, i)).Run)
	}
	slices.Reverse(all)
	const can = "these runs can be undone, the newest first: "
	got, want := undoable(), can+strings.Join(all[:6], ", ")+", and 2 more"
	check.That(t, got == want, "%q, want %q", got, want)
	undo(t, n, e, all[6])
	got, want = undoable(), can+all[7]
	check.That(t, got == want, "%q, want %q", got, want)
}

// A plan to undo nothing has lists that a program can read.
func TestUndoPlanOfNothing(t *testing.T) {
	p := must.Get(edition(t, 1).PlanUndo(t.Context(), node(t), "", nil))(t)
	b, _ := json.Marshal(p)
	check.That(t, !strings.Contains(string(b), "null"), "%s", b)
}

// rests is a thing that is there only while what it rests on is: a unit and its file.
type rests struct{ on, name string }

func (r rests) Ref() converge.Ref {
	return converge.Ref{Kind: "rests", Name: r.on + " " + r.name}
}

func (r rests) Look(ctx context.Context, v host.View) (converge.State, error) {
	return pkgThing{r.name}.Look(ctx, v)
}

func (r rests) Make(ctx context.Context, h host.Host, to converge.State) error {
	if _, err := h.Stat(r.on); err != nil {
		return fmt.Errorf("cannot make %s: nothing to rest on: %w", r.name, err)
	}
	return pkgThing{r.name}.MakeAll(ctx, h, []converge.Change{{
		Ref:   converge.Ref{Name: r.name},
		After: to,
	}})
}

// What was made first goes last, also where it was changed again since: what was made upon it needs
// it until it has gone itself.
func TestUndoInTheOrderOfTheFirstTouch(t *testing.T) {
	at := func(text string) *converge.Engine {
		e := engineOf(t, stage(things.Exact("/srv/unit", []byte(text), 0o644, ""), converge.Want{
			Thing: rests{"/srv/unit", "on"},
			To:    to("1"),
		}))
		e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
			if on, name, ok := strings.Cut(ref.Name, " "); ok && ref.Kind == "rests" {
				return rests{on, name}, nil
			}
			return kinds(ref)
		}

		return e
	}

	for name, undoes := range map[string]func(e *converge.Engine, h host.Host) error{
		"undo": func(e *converge.Engine, h host.Host) error { _, err := e.Undo(t.Context(), h, "all", nil); return err },
		"a shrunk spec": func(e *converge.Engine, h host.Host) error {
			e.Stages = []converge.Stage{stage()}
			_, err := e.Apply(t.Context(), h)
			return err
		},
	} {
		n := node(t)
		first := n.Tree(converge.Home, "/srv/last-transaction")
		apply(t, n, at("1\n"))
		apply(t, n, at("2\n"))
		err := undoes(at("2\n"), n)
		check.That(t, err == nil, "%s: %v", name, err)
		compare(t, name, first, n.Tree(converge.Home, "/srv/last-transaction"))
	}
}

// depends is a package of which version 2 depends on the package lib, as the next branch of a
// driver does on a library of its own.
type depends struct{ pkgThing }

func (d depends) MakeAll(ctx context.Context, h host.Host, all []converge.Change) error {
	now := map[string]converge.State{}
	for _, name := range []string{"driver", "lib"} {
		s, err := pkgThing{name}.Look(ctx, h)
		if err != nil {
			return err
		}
		now[name] = s
	}

	for _, c := range all {
		now[c.Name] = c.After
	}
	if now["driver"] == "2" && now["lib"] == "" {
		return errors.New("cannot make packages: apt would remove driver 2, which depends on what would change")
	}
	return d.pkgThing.MakeAll(ctx, h, all)
}

// What is made in one transaction goes in one, also where a later run has drawn some of it along:
// no other order would be taken.
func TestUndoOfAnUpgradeThatDrewMore(t *testing.T) {
	at := func(version converge.State, more ...string) *converge.Engine {
		var wants []converge.Want
		for _, name := range more {
			wants = append(wants, converge.Want{Thing: depends{pkgThing{name}}, To: to("1")})
		}
		wants = append(wants, converge.Want{
			Thing: depends{pkgThing{"driver"}},
			To:    to(version),
		})
		e := engineOf(t, stage(wants...), converge.Stage{
			Name:  "runtime",
			Wants: stage(things.Exact("/srv/unit", []byte("of the driver\n"), 0o644, "")).Wants,
		})
		e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
			if ref.Kind == "packages" {
				return depends{pkgThing{ref.Name}}, nil
			}
			return kinds(ref)
		}

		return e
	}

	n := node(t)
	first := n.Tree(converge.Home, "/srv/last-transaction")
	apply(t, n, at("1"))
	apply(t, n, at("2", "lib"))
	p := must.Get(at("2", "lib").PlanUndo(t.Context(), n.View(), "all", nil))(t)
	check.List(t, strings.Fields(namesNow(p.Changes)), []string{"file", "/srv/unit", "packages", "lib", "packages", "driver"}, "planned:")
	must.Get(at("2", "lib").Undo(t.Context(), n, "all", nil))(t)
	compare(t, "undo", first, n.Tree(converge.Home, "/srv/last-transaction"))
}
