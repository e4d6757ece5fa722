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

// hostileStages are two stages in one of three editions, from 1 on.
func hostileStages(edition int) []converge.Stage {
	text := []byte(fmt.Sprintf("edition %d\n", edition))
	x := keys{gadget{name: "/srv/x"}}
	y := keys{gadget{name: "/srv/y"}}
	twoWords := converge.Want{Thing: x, To: func(found converge.State) (converge.State, error) {
		s, err := x.with(fmt.Sprintf("w%d", edition)).To(found)
		if err != nil {
			return "", err
		}
		return x.with("common").To(s)
	}}

	driver := named("driver",
		things.Exact("/etc/d.conf", text, 0o644, ""),
		wantPkg("x", fmt.Sprint(edition)),
		wantPkg("old", fmt.Sprint(edition%2)),
		twoWords,
	)

	wants := things.Folders("/srv/f/g", "")
	wants = append(wants, y.with(fmt.Sprintf("v%d", edition)))
	if edition != 2 {
		wants = append(wants, things.Exact("/srv/f/g/z", text, 0o600, ""))
	}
	return []converge.Stage{driver, named("runtime", wants...)}
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
					events, wrong := hostileHistory(t, seed, edits)
					told := strings.Join(events, "\n")
					check.None(t, wrong, "seed %d, edits %t:\n%s", seed, edits, told)
				}
			}
		})
	}
}

// hostile is a machine, what its seed has done to it, and the words that others have written.
type hostile struct {
	t      *testing.T
	rand   *rand.Rand
	node   *simhost.Node
	runs   []string          // ids
	others map[string]string // by file: the words that gpuadm did not write
	events []string
}

// hostileHistory makes some runs, each with faults or not, and compares the machine afterwards with a
// fresh one: after an apply, if the seed has one, and after an undo of all.
func hostileHistory(t *testing.T, seed uint64, edits bool) (events []string, wrong string) {
	h := &hostile{
		t:      t,
		rand:   rand.New(rand.NewPCG(seed, 99)),
		node:   node(t),
		others: map[string]string{"/srv/x": "theirs", "/srv/y": "theirs"},
	}
	put(t, h.node, "/srv/x", "theirs")
	put(t, h.node, "/srv/y", "theirs")

	for i := range 3 + h.rand.IntN(8) {
		h.node.Advance(1e9)
		wrong := h.event(i)
		if wrong != "" {
			return h.events, wrong
		}
		if edits && h.rand.IntN(3) == 0 {
			h.edit(fmt.Sprintf("edit%d", i))
		}
	}
	return h.events, h.compare()
}

func (h *hostile) tell(format string, args ...any) {
	h.events = append(h.events, fmt.Sprintf(format, args...))
}

// event makes one run, with faults or not, and boots the machine if the run was killed.
func (h *hostile) event(i int) (wrong string) {
	n := h.node
	at := n.Touches() + h.rand.IntN(60)
	fault := h.plant(at)
	e := hostileEngine(h.t, 1+h.rand.IntN(3))
	what, result, err := h.run(e)
	if result.Run != "" {
		h.runs = append(h.runs, result.Run)
	}
	h.tell("%d: %s by %s, %s: run %s, %v %q", i, what, e.Stages[0].Name, fault, result.Run, err, because(err))

	wasKilled := n.Off()
	n.CutAt(-1)
	for k := range 14 {
		n.Fail(at+k, nil)
	}
	if wasKilled {
		n.Revive()
		h.tell("x %q, y %q", content(n, "/srv/x"), content(n, "/srv/y"))
		if h.rand.IntN(2) == 0 {
			n.Reboot()
		}
		return ""
	}

	if fault != "" || err == nil || errors.Is(err, converge.ErrHalfUndone) || strings.Contains(err.Error(), "no such run") {
		return ""
	}
	return "an error without a fault"
}

// plant plants faults at touches from one on, and names them; "" for none.
func (h *hostile) plant(at int) (fault string) {
	switch h.rand.IntN(5) {
	case 0:
		h.node.CutAt(at)
		return "killed"
	case 1:
		h.node.Fail(at, syscall.EIO)
		return "EIO"
	case 2:
		h.node.Fail(at, syscall.ENOSPC)
		h.node.Fail(at+1+h.rand.IntN(12), syscall.EIO)
		return "two faults"
	}
	return ""
}

// run makes one of the commands.
func (h *hostile) run(e *converge.Engine) (what string, result converge.Result, err error) {
	ctx := context.Background()
	switch h.rand.IntN(8) {
	case 0, 1, 2:
		what = "apply"
		result, err = e.Apply(ctx, h.node)
	case 3:
		what = "apply of one stage"
		k := h.rand.IntN(2)
		e.Before = e.Stages
		e.Stages = e.Stages[k : k+1]
		result, err = e.Apply(ctx, h.node)
	case 4:
		what = "boot"
		e.Unattended = true
		result, err = e.Apply(ctx, h.node)
	case 5:
		what = "undo"
		result, err = e.Undo(ctx, h.node, "", nil)
	case 6:
		what = "undo all"
		result, err = e.Undo(ctx, h.node, "all", nil)
	case 7:
		to := "none"
		if len(h.runs) > 0 {
			to = h.runs[h.rand.IntN(len(h.runs))]
		}
		what = "undo --to " + to
		result, err = e.Undo(ctx, h.node, to, nil)
	}
	return what, result, err
}

// edit adds a word of another process to one of the two files.
func (h *hostile) edit(word string) {
	name := []string{"/srv/x", "/srv/y"}[h.rand.IntN(2)]
	text := content(h.node, name) + " " + word
	must.OK(h.t, h.node.WriteFile(name, []byte(text), host.Attr{Mode: 0o600}))
	h.others[name] += " " + word
	h.tell("edit %s of %s: %q", name, word, content(h.node, name))
}

// compare ends the history: what remains must be what a fresh machine with the words of others has.
func (h *hostile) compare() (wrong string) {
	ctx := context.Background()
	n := h.node
	n.Advance(1e9)
	fresh := node(h.t)
	for name, text := range h.others {
		put(h.t, fresh, name, text)
	}

	want := seen(fresh)
	if h.rand.IntN(2) == 0 {
		_, err := hostileEngine(h.t, 3).Apply(ctx, n)
		if err != nil {
			return fmt.Sprintf("the last apply: %v %q", err, because(err))
		}
		apply(h.t, fresh, hostileEngine(h.t, 3))
		if seen(fresh) != seen(n) {
			return "applied it is\n" + seen(n) + "\nwant\n" + seen(fresh)
		}
		h.tell("applied: x %q, y %q", content(n, "/srv/x"), content(n, "/srv/y"))
	}

	n.Advance(1e9)
	_, err := hostileEngine(h.t, 3).Undo(ctx, n, "all", nil)
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Sprintf("the last undo: %v %q", err, because(err))
	}
	if seen(n) != want {
		return "undone it is\n" + seen(n) + "\nwant\n" + want
	}
	return ""
}

// seen is the tree without gpuadm's own files and what each run or boot changes, and the words of the
// two files in order.
func seen(n *simhost.Node) string {
	var kept []string
	own := []string{"/var", "/pkg/.gpuadm", "/srv/.gpuadm"}
	tree := n.Tree(converge.Home, "/srv/last-transaction", "/srv/x", "/srv/y")
	for _, line := range strings.Split(tree, "\n") {
		isOwn := slices.ContainsFunc(own, func(name string) bool { return strings.HasPrefix(line, name) })
		if !isOwn && !strings.Contains(line, "boot_id") {
			kept = append(kept, line)
		}
	}

	kept = append(kept, sorted(content(n, "/srv/x")), sorted(content(n, "/srv/y")))
	return strings.Join(kept, "\n")
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
