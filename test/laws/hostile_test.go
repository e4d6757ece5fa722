// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// hostileStages are two stages in one of some editions.
func hostileStages(edition int) []converge.Stage {
	var a, b []converge.Want
	x, y := keys{gadget{name: "/srv/x"}}, keys{gadget{name: "/srv/y"}}
	text := []byte(fmt.Sprintf("edition %d\n", edition))
	if edition > 0 {
		b = append(b, things.Folders("/srv/f/g", "")...)
		a = append(a, things.Exact("/etc/d.conf", text, 0o644, ""), wantPkg("x", fmt.Sprint(edition)), wantPkg("old", fmt.Sprint(edition%2)), converge.Want{Thing: x, To: func(found converge.State) (converge.State, error) {
			s, err := x.with(fmt.Sprintf("w%d", edition)).To(found)
			if err != nil {
				return "", err
			}
			return x.with("common").To(s)
		}})
		b = append(b, y.with(fmt.Sprintf("v%d", edition)))
		if edition != 2 {
			b = append(b, things.Exact("/srv/f/g/z", text, 0o600, ""))
		}
	}

	return []converge.Stage{named("driver", a...), named("runtime", b...)}
}

func hostileEngine(t testing.TB, edition int) *converge.Engine {
	return gadgets(t, nil, hostileStages(edition)...)
}

// Kills, one or two faults, and edits of others, in any order: an apply ends as on a fresh machine,
// an undo of all in the first tree, and none of gpuadm's own states is taken for one of others.
func TestHostileRandom(t *testing.T) {
	from, many := seeds(t, 10, 100, 3000)
	for part := range uint64(8) {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			for seed := from + part; seed < from+many && !t.Failed(); seed += 8 {
				for _, edits := range []bool{false, true} {
					if events, err := hostileHistory(t, seed, edits); err != "" {
						t.Errorf("seed %d, edits %t: %s\n%s", seed, edits, err, strings.Join(events, "\n"))
					}
				}
			}
		})
	}
}

func hostileHistory(t *testing.T, seed uint64, edits bool) (events []string, wrong string) {
	r := rand.New(rand.NewPCG(seed, 99))
	ctx := context.Background()
	n := node(t)
	put(t, n, "/srv/x", "theirs")
	put(t, n, "/srv/y", "theirs")
	tell := func(format string, args ...any) {
		events = append(events, fmt.Sprintf(format, args...))
	}
	see := func(n *simhost.Node) string {
		tree := n.Tree(converge.Home, "/srv/last-transaction", "/srv/x", "/srv/y")
		var keep []string
		for _, line := range strings.Split(tree, "\n") {
			if !strings.Contains(line, "boot_id") && !strings.HasPrefix(line, "/var") && !strings.HasPrefix(line, "/pkg/.gpuadm") && !strings.HasPrefix(line, "/srv/.gpuadm") {
				keep = append(keep, line)
			}
		}

		return strings.Join(keep, "\n") + "\n" + sorted(content(n, "/srv/x")) + "\n" + sorted(content(n, "/srv/y"))
	}

	foreign := map[string]string{"/srv/x": "theirs", "/srv/y": "theirs"}
	var runs []string
	for i := range 3 + r.IntN(8) {
		n.Advance(1e9)
		fault := ""
		at := n.Touches() + r.IntN(60)
		switch r.IntN(5) {
		case 0:
			n.CutAt(at)
			fault = "killed"
		case 1:
			n.Fail(at, syscall.EIO)
			fault = "EIO"
		case 2:
			n.Fail(at, syscall.ENOSPC)
			n.Fail(at+1+r.IntN(12), syscall.EIO)
			fault = "two faults"
		}

		e := hostileEngine(t, 1+r.IntN(3))
		var err error
		var res converge.Result
		what := ""
		switch r.IntN(8) {
		case 0, 1, 2:
			what = "apply"
			res, err = e.Apply(ctx, n)
		case 3:
			what = "apply of one stage"
			e.Before = e.Stages
			k := r.IntN(2)
			e.Stages = e.Stages[k : k+1]
			res, err = e.Apply(ctx, n)
		case 4:
			what = "boot"
			e.Unattended = true
			res, err = e.Apply(ctx, n)
		case 5:
			what = "undo"
			res, err = e.Undo(ctx, n, "", nil)
		case 6:
			what = "undo all"
			res, err = e.Undo(ctx, n, "all", nil)
		case 7:
			to := "none"
			if len(runs) > 0 {
				to = runs[r.IntN(len(runs))]
			}
			what = "undo --to " + to
			res, err = e.Undo(ctx, n, to, nil)
		}

		if res.Run != "" {
			runs = append(runs, res.Run)
		}
		tell("%d: %s by %s, %s: run %s, %v %q", i, what, e.Stages[0].Name, fault, res.Run, err, because(err))
		off := n.Off()
		n.CutAt(-1)
		for k := range 14 {
			n.Fail(at+k, nil)
		}
		if off {
			n.Revive()
			tell("x %q, y %q", content(n, "/srv/x"), content(n, "/srv/y"))
			if r.IntN(2) == 0 {
				n.Reboot()
			}
		} else if fault == "" && err != nil && !errors.Is(err, converge.ErrHalfUndone) && !strings.Contains(err.Error(), "no such run") {
			return events, "an error without a fault"
		}

		if edits && r.IntN(3) == 0 {
			word := fmt.Sprintf("edit%d", i)
			name := []string{"/srv/x", "/srv/y"}[r.IntN(2)]
			text := content(n, name)
			must.OK(t, n.WriteFile(name, []byte(text+" "+word), host.Attr{Mode: 0o600}))
			foreign[name] += " " + word
			tell("edit %s of %s: %q", name, word, content(n, name))
		}
	}

	n.Advance(1e9)
	fresh := node(t)
	for name, text := range foreign {
		put(t, fresh, name, text)
	}
	want := see(fresh)
	if r.IntN(2) == 0 {
		if _, err := hostileEngine(t, 3).Apply(ctx, n); err != nil {
			return events, fmt.Sprintf("the last apply: %v %q", err, because(err))
		}
		apply(t, fresh, hostileEngine(t, 3))
		if see(fresh) != see(n) {
			return events, "applied it is\n" + see(n) + "\nwant\n" + see(fresh)
		}
		tell("applied: x %q, y %q", content(n, "/srv/x"), content(n, "/srv/y"))
	}

	n.Advance(1e9)
	if _, err := hostileEngine(t, 3).Undo(ctx, n, "all", nil); err != nil && !errors.Is(err, context.Canceled) {
		return events, fmt.Sprintf("the last undo: %v %q", err, because(err))
	}
	if see(n) != want {
		return events, "undone it is\n" + see(n) + "\nwant\n" + want
	}
	return events, ""
}

func sorted(text string) string {
	words := strings.Fields(text)
	slices.Sort(words)
	return strings.Join(words, " ")
}

// A gadget is a thing with the text of a file as its state; a test can spoil its look and its make.
type gadget struct {
	name string
	look func() error
	make func(h host.Host, to converge.State) error // its error, or nil to make it; errSkip does nothing
}

var errSkip = errors.New("skip")

func (g gadget) Ref() converge.Ref { return converge.Ref{Kind: "gadget", Name: g.name} }

func (g gadget) Look(_ context.Context, v host.View) (converge.State, error) {
	if g.look != nil {
		if err := g.look(); err != nil {
			return "", err
		}
	}

	b, err := v.ReadFile(g.name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return converge.State(b), err
}

func (g gadget) Make(_ context.Context, h host.Host, to converge.State) error {
	var reboot error
	if g.make != nil {
		err := g.make(h, to)
		if errors.Is(err, errSkip) {
			return nil
		}
		if err != nil && !errors.As(err, new(host.Reboot)) {
			return err
		}
		reboot = err
	}

	var err error
	if to == "" {
		err = h.Remove(g.name)
	} else {
		err = h.WriteFile(g.name, []byte(to), host.Attr{Mode: 0o644})
	}

	if err != nil {
		return err
	}
	return reboot
}

// keys is a file of words, each of which can be taken out alone.
type keys struct{ gadget }

func (k keys) Ref() converge.Ref { return converge.Ref{Kind: "keys", Name: k.name} }

func (keys) TakeOut(_ host.View, found, before, after converge.State) (converge.State, []string, error) {
	words := strings.Fields(string(found))
	was, became := strings.Fields(string(before)), strings.Fields(string(after))
	words = slices.DeleteFunc(words, func(w string) bool {
		return slices.Contains(became, w) && !slices.Contains(was, w)
	})
	for _, w := range was {
		if !slices.Contains(became, w) && !slices.Contains(words, w) {
			words = append(words, w)
		}
	}

	return converge.State(strings.Join(words, " ")), nil, nil
}

// with wants a word among the words.
func (k keys) with(word string) converge.Want {
	return converge.Want{Thing: k, To: func(found converge.State) (converge.State, error) {
		words := strings.Fields(string(found))
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
		return converge.State(strings.Join(words, " ")), nil
	}}
}

// gadgets is an engine that knows some gadgets.
func gadgets(t testing.TB, known []gadget, stages ...converge.Stage) *converge.Engine {
	e := engineOf(t, stages...)
	e.Spec = specs.Of(t, "[driver]\n[runtime]\n[toolkit]\n")
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if i := slices.IndexFunc(known, func(g gadget) bool { return g.name == ref.Name }); i >= 0 && ref.Kind == "gadget" {
			return known[i], nil
		}
		switch ref.Kind {
		case "gadget":
			return gadget{name: ref.Name}, nil
		case "keys":
			return keys{gadget{name: ref.Name}}, nil
		}

		return kinds(ref)
	}

	return e
}

func named(name string, wants ...converge.Want) converge.Stage {
	return converge.Stage{
		Name:  name,
		Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return wants, nil },
	}
}

func content(n *simhost.Node, name string) string {
	b, err := n.ReadFile(name)
	if err != nil {
		return fmt.Sprintf("(%v)", errors.Is(err, fs.ErrNotExist))
	}
	return string(b)
}

// killedBeforeMake finds the touch before which a change's line is on disk and the change is not
// made: the process is killed there.
func killedBeforeMake(t *testing.T, make func() *simhost.Node, run func(n *simhost.Node) error, name string) *simhost.Node {
	t.Helper()
	var n *simhost.Node
	for k := 0; ; k++ {
		next := make()
		text := content(next, name)
		next.CutAt(next.Touches() + k)
		must.That(t, run(next) != nil && next.Off(), "not found")
		next.Revive()
		if content(next, name) != text {
			return n // the one before
		}
		n = next
	}
}

func manyRuns(t *testing.T, n *simhost.Node, wants func(i int) *converge.Engine) {
	for i := range 140 {
		n.Advance(1e9)
		apply(t, n, wants(i))
	}
}

// An undo was cut before its touch and overtaken by an apply, and another process edits the file.
// Hundreds of runs later the journal is compacted: undo still takes back what was made.
func TestHostileCompactedOvertakenUndoAndAnEdit(t *testing.T) {
	k := keys{gadget{name: "/srv/keys"}}
	one := func() *converge.Engine { return gadgets(t, nil, stage(k.with("ours"))) }
	n := killedBeforeMake(t, func() *simhost.Node {
		n := node(t)
		put(t, n, "/srv/keys", "their")
		apply(t, n, one())
		n.Advance(1e9)
		return n
	}, func(n *simhost.Node) error {
		_, err := one().Undo(context.Background(), n, "", nil)
		return err
	}, "/srv/keys")
	n.Advance(1e9)
	apply(t, n, one())
	put(t, n, "/srv/keys", content(n, "/srv/keys")+" more")
	manyRuns(t, n, func(i int) *converge.Engine {
		return gadgets(t, nil, stage(k.with("ours"), things.Exact("/srv/n", []byte(fmt.Sprint(i)), 0o644, "")))
	})
	undo(t, n, one(), "all")
	check.Equal(t, content(n, "/srv/keys"), "their more", "undone:")
}

// A run that was cut before its touch, and then closed by an apply of another stage, may not have
// made its last change.
func TestHostileCutRunClosedByAnotherStage(t *testing.T) {
	k := keys{gadget{name: "/srv/keys"}}
	of := func(word string) *converge.Engine { return gadgets(t, nil, stage(k.with(word))) }
	n := killedBeforeMake(t, func() *simhost.Node {
		n := node(t)
		put(t, n, "/srv/keys", "their")
		apply(t, n, of("one"))
		n.Advance(1e9)
		return n
	}, func(n *simhost.Node) error {
		_, err := of("two").Apply(context.Background(), n)
		return err
	}, "/srv/keys")
	n.Advance(1e9)
	other := gadgets(t, nil, named("runtime", things.Exact("/srv/other", nil, 0o644, "")))
	other.Before = append(of("two").Stages, other.Stages...)
	apply(t, n, other)
	put(t, n, "/srv/keys", content(n, "/srv/keys")+" more")
	n.Advance(1e9)
	undo(t, n, of("two"), "all")
	check.Equal(t, content(n, "/srv/keys"), "their more", "undone:")
}
