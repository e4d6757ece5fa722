// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Two faults: a make fails, and so does its roll-back, in an apply or in an undo. What stays is
// undone later, or is back already: the next undo ends in the first tree.
func TestHostileTwoFaults(t *testing.T) {
	ctx := context.Background()
	e := func() *converge.Engine {
		return engineOf(t, stage(
			things.Exact("/etc/d.conf", []byte("a"), 0o600, ""), wantPkg("x", "1"), wantPkg("old", "3"),
			things.Exact("/srv/z", []byte("z"), 0o644, "")))
	}

	whole := node(t)
	apply(t, whole, e())
	made := whole.Touches()
	undo(t, whole, e(), "all")
	for what, c := range map[string]struct {
		from, to int
		fails    func(n *simhost.Node) error
	}{
		"apply": {0, made, func(n *simhost.Node) error { _, err := e().Apply(ctx, n); return err }},
		"undo":  {made, whole.Touches(), func(n *simhost.Node) error { _, err := e().Undo(ctx, n, "all", nil); return err }},
	} {
		wrong := 0
		for at := range every(c.to - c.from) {
			at += c.from
			for k := at + 1; k < at+30; k++ {
				n := node(t)
				first := n.Tree(converge.Home, "/srv/last-transaction")
				if what == "undo" {
					apply(t, n, e())
				}
				n.Fail(at, syscall.EIO)
				n.Fail(k, syscall.EIO)
				err := c.fails(n)
				if _, uerr := e().Undo(ctx, n, "all", nil); uerr != nil {
					_, uerr = e().Undo(ctx, n, "all", nil) // the second fault may have come here
					if uerr == nil {
						continue
					}
					t.Fatalf("%s: touches %d and %d failed: %v, undo: %v", what, at, k, err, uerr)
				}

				got := regexp.MustCompile(`(?m)^/pkg/\.gpuadm.*\n`).ReplaceAllString(n.Tree(converge.Home, "/srv/last-transaction"), "")
				if got != first {
					if wrong++; wrong == 1 {
						t.Errorf("%s: touches %d and %d failed with %v, %q; undone it is:\n%s", what, at, k, err, because(err), got)
					}
				}
			}
		}

		check.That(t, wrong <= 0, "%s: %d wrong trees", what, wrong)
	}
}

// An undo that needs a reboot for one thing still verifies all others.
func TestHostileUndoWithARebootLooksAgain(t *testing.T) {
	lazy := gadget{name: "/srv/lazy", make: func(_ host.Host, to converge.State) error {
		if to == "" {
			return errSkip
		}
		return nil
	}}
	booting := gadget{name: "/srv/booting", make: func(_ host.Host, to converge.State) error {
		if to == "" {
			return host.Reboot{Why: "the mode is switched at boot"}
		}
		return nil
	}}
	e := gadgets(t, []gadget{lazy, booting}, stage(converge.Want{
		Thing: lazy,
		To:    to("on"),
	}, converge.Want{Thing: booting, To: to("on")}))
	n := node(t)
	apply(t, n, e)
	if res, err := e.Undo(t.Context(), n, "", nil); err == nil {
		t.Errorf("%s is %q, and the undo ended well: %v", lazy.name, content(n, lazy.name), res.Made)
	}
}

// A roll-back that needs a reboot says so.
func TestHostileRollBackThatNeedsAReboot(t *testing.T) {
	booting := gadget{name: "/srv/booting", make: func(_ host.Host, to converge.State) error {
		if to == "" {
			return host.Reboot{Why: "the mode is switched at boot"}
		}
		return nil
	}}
	bad := gadget{
		name: "/srv/bad",
		make: func(host.Host, converge.State) error { return errors.New("bad") },
	}
	e := gadgets(t, []gadget{bad, booting}, stage(converge.Want{
		Thing: booting,
		To:    to("on"),
	}, converge.Want{Thing: bad, To: to("on")}))
	res, err := e.Apply(t.Context(), node(t))
	check.That(t, err != nil && res.Reboot != "", "rolled back with a reboot: %v, reboot %q", err, res.Reboot)
}

// What undo does not take back, a roll-back does not take back either.
func TestHostileRollBackKeeps(t *testing.T) {
	kept := gadget{name: "/srv/kept", make: func(_ host.Host, to converge.State) error {
		if to == "" {
			return errors.New("it cannot be interrupted again")
		}
		return nil
	}}
	bad := gadget{
		name: "/srv/bad",
		make: func(host.Host, converge.State) error { return errors.New("bad") },
	}
	w := converge.Want{Thing: kept, To: to("on"), Keeps: "it is finished"}
	e := gadgets(t, []gadget{bad, kept}, stage(w, converge.Want{Thing: bad, To: to("on")}))
	n := node(t)
	var events []string
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Kept {
			events = append(events, ev.Text)
		}
	}

	_, err := e.Apply(t.Context(), n)
	check.That(t, err != nil && len(because(err)) == 0 && len(events) == 1, "rolled back: %v, because %q, kept %q", err, because(err), events)
}

// A stage that fails before it touches anything names what earlier stages have changed, and how to
// take that back.
func TestHostileFailedLookNamesWhatRemains(t *testing.T) {
	n := node(t)
	blind := gadget{name: "/srv/blind", look: func() error {
		if _, err := n.Stat("/srv/first"); err == nil {
			return errors.New("no answer")
		}
		return nil
	}}
	e := gadgets(t, []gadget{blind}, stage(things.Exact("/srv/first", nil, 0o644, "")), named("runtime", converge.Want{
		Thing: blind,
		To:    to("on"),
	}))
	_, err := e.Apply(t.Context(), n)
	check.That(t, err != nil && strings.Contains(strings.Join(because(err), " "), "these stages remain: driver"), "failed: %v, because %q", err, because(err))
}

// An undo of all was cut, and the next is asked for the last run alone: it is refused, and what it
// advises works.
func TestHostileUndoToOverACutUndo(t *testing.T) {
	v := func(text string) *converge.Engine {
		return engineOf(t, stage(things.Exact("/srv/z", []byte(text), 0o644, ""), things.Exact("/etc/d.conf", []byte(text), 0o644, "")))
	}
	n := node(t)
	first := n.Tree(converge.Home)
	oldest := apply(t, n, v("one")).Run
	n.Advance(1e9)
	apply(t, n, v("two"))
	n.Advance(1e9)
	last := apply(t, n, v("three"))
	n.Advance(1e9)
	e := stopsAt(v("three"), converge.Undone)
	_, err := e.Undo(t.Context(), n, "all", nil)
	must.That(t, errors.Is(err, converge.ErrStopped), "%v", err)
	cut := n.Tree()
	_, err = v("three").Undo(t.Context(), n, last.Run, nil)
	advises(t, err, oldest)
	compare(t, "refused", cut, n.Tree())
	undo(t, n, v("three"), oldest)
	compare(t, "undone", first, n.Tree(converge.Home))
}

// advises checks that an undo was refused, since an undo of more runs was interrupted, and names
// the oldest of them.
func advises(t *testing.T, err error, oldest string) {
	t.Helper()
	tr := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &tr) && errors.Is(err, converge.ErrHalfUndone), "%v", err)
	check.That(t, len(tr.Try) == 1 && strings.HasSuffix(tr.Try[0], trouble.Command("undo --to "+oldest)), "try %q", tr.Try)
}

// A cut undo of all, overtaken by an apply: that apply can be undone alone, and the runs before it
// together.
func TestHostileUndoAfterAnOvertakenUndo(t *testing.T) {
	v := func(text string) *converge.Engine {
		return engineOf(t, stage(things.Exact("/srv/z", []byte(text), 0o644, ""), things.Exact("/etc/d.conf", []byte(text), 0o644, "")))
	}
	n := node(t)
	first := n.Tree(converge.Home)
	var runs []string
	for _, text := range []string{"one", "two", "three"} {
		runs = append(runs, apply(t, n, v(text)).Run)
		n.Advance(1e9)
	}

	e := stopsAt(v("three"), converge.Undone)
	_, err := e.Undo(t.Context(), n, "all", nil)
	must.That(t, errors.Is(err, converge.ErrStopped), "%v", err)
	n.Advance(1e9)
	apply(t, n, v("three"))
	n.Advance(1e9)
	undo(t, n, v("three"), "")
	n.Advance(1e9)
	_, err = v("three").Undo(t.Context(), n, "", nil)
	advises(t, err, runs[0])
	undo(t, n, v("three"), runs[0])
	compare(t, "undone", first, n.Tree(converge.Home))
}

// An undo that leaves a file, as asked, was cut: the boot finishes it, and leaves the file.
func TestHostileBootFinishesAnUndoThatLeaves(t *testing.T) {
	n := node(t)
	e := func() *converge.Engine {
		return engineOf(t, stage(things.Exact("/etc/d.conf", []byte("ours"), 0o644, ""), things.Exact("/srv/a", nil, 0o644, ""), things.Exact("/srv/b", nil, 0o644, "")))
	}
	apply(t, n, e())
	put(t, n, "/etc/d.conf", "theirs")
	cut := stopsAt(e(), converge.Undone)
	if _, err := cut.Undo(t.Context(), n, "", []string{"/etc/d.conf"}); !errors.Is(err, converge.ErrStopped) {
		t.Fatal(err)
	}
	n.Reboot()
	next := e()
	next.Unattended = true
	res, err := next.Apply(t.Context(), n)
	check.That(t, err == nil && res.Held != "", "the boot does not finish it: %v, %q", err, because(err))
	check.That(t, content(n, "/etc/d.conf") == "theirs", "the file that was to be left was changed")
}

// The line that holds cannot be written, for one moment: the undo is not forgotten by the next
// boot.
func TestHostileFailedHoldLine(t *testing.T) {
	e := func() *converge.Engine {
		return engineOf(t, stage(things.Exact("/srv/a", nil, 0o644, "")))
	}
	whole := node(t)
	apply(t, whole, e())
	made := whole.Touches()
	undo(t, whole, e(), "")
	for at := made; at < whole.Touches(); at++ {
		n := node(t)
		apply(t, n, e())
		n.Fail(at, syscall.EIO)
		_, err := e().Undo(context.Background(), n, "", nil)
		if _, serr := n.Stat("/srv/a"); serr == nil || err == nil {
			continue // rolled back
		}
		n.Reboot()
		next := e()
		next.Unattended = true
		_, _ = next.Apply(context.Background(), n)
		_, serr := n.Stat("/srv/a")
		check.That(t, serr != nil, "touch %d: the undo ended with %v, and the boot has applied again", at, err)
	}
}

// What was made and taken back again is not gpuadm's any more: a daemon that the spec no longer
// names is not restarted.
func TestHostileNoRestartOfWhatIsNoLongerAskedFor(t *testing.T) {
	n := node(t)
	must.OK(t, n.SetUnit(t.Context(), "d.service", host.UnitChange{Job: "start"}))
	restart := things.Restart("d.service", []string{"/etc/d.conf"}, nil, "")
	of := func(s converge.Stage) *converge.Engine {
		e := engineOf(t, s)
		e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
			if ref.Kind == "restart" {
				return restart.Thing, nil
			}
			return kinds(ref)
		}

		return e
	}

	apply(t, n, of(stage(things.Exact("/etc/d.conf", []byte("ours"), 0o644, ""), restart)))
	n.Advance(1e9)
	apply(t, n, of(stage()))
	must.That(t, content(n, "/etc/d.conf") == "old\n", "not shrunk")
	n.Advance(60e9)
	put(t, n, "/etc/d.conf", "theirs")
	n.Advance(60e9)
	p := plan(t, n, of(stage()))
	check.That(t, p.Now() == 0, "planned: %s", namesNow(p.Changes))
}

// An undo of all was killed when only the line that ends it was missing, and the next is asked for
// the last run alone: that would bring back a file whose folder is gone. It says that the earlier
// runs are undone too, and how to finish.
func TestHostileUndoToOverAnUndoWithoutItsEnd(t *testing.T) {
	folder, file := things.Folders("/srv/f", ""), things.Exact("/srv/f/z", []byte("one"), 0o644, "")
	tested := 0
	for at := range 40 {
		n := node(t)
		first := n.Tree(converge.Home)
		apply(t, n, engineOf(t, stage(append(folder, file)...)))
		n.Advance(1e9)
		e := engineOf(t, stage(folder...))
		last := apply(t, n, e)
		n.Advance(1e9)
		n.CutAt(n.Touches() + at)
		if _, err := e.Undo(t.Context(), n, "all", nil); err == nil {
			break
		}
		n.Revive()
		_, err := e.Undo(t.Context(), n, last.Run, nil)
		if tr := (*trouble.Error)(nil); errors.As(err, &tr) && !strings.Contains(err.Error(), "it is already undone") {
			tested++
			check.That(t, errors.Is(err, converge.ErrHalfUndone) && strings.Contains(strings.Join(tr.Try, " "), "gpuadm undo --to "),
				"touch %d: %v, because %q, try %q", at, err, tr.Because, tr.Try)
		}

		undo(t, n, e, "all")
		compare(t, "undone", first, n.Tree(converge.Home))
	}

	check.That(t, tested != 0, "no undo was refused")
}

// A run is killed in the middle of a write, and the next one can neither sweep nor go on: the one
// after it removes the temporary file.
func TestHostileSweepAfterTwoFaults(t *testing.T) {
	e := func() *converge.Engine {
		return engineOf(t, stage(things.Exact("/etc/a", []byte("a"), 0o644, "")))
	}
	killed := func(at int) *simhost.Node {
		n := node(t)
		put(t, n, "/etc/a", "old")
		n.CutAt(n.Touches() + at)
		_, _ = e().Apply(t.Context(), n)
		n.Revive()
		return n
	}

	const temporary = "/etc/.gpuadm-"
	at := 40 // the last touch that leaves one: the new bytes are in place, and the next apply has nothing to do in the folder
	for ; !strings.Contains(killed(at).Tree(), temporary); at-- {
		must.That(t, at != 0, "no run that was killed leaves a temporary file")
	}
	left := 0
	for first := range 8 {
		for second := first + 1; second < first+20; second++ {
			n := killed(at)
			n.Fail(n.Touches()+first, syscall.EIO)
			n.Fail(n.Touches()+second, syscall.EIO)
			if _, err := e().Undo(t.Context(), n, "all", nil); err == nil {
				continue // it has named what it could not remove
			}
			if strings.Contains(n.Tree(), temporary) {
				left++
			}
			n.Reboot() // nothing fails any more
			apply(t, n, e())
			clean(t, fmt.Sprintf("touches %d and %d failed", first, second), n)
		}
	}

	check.That(t, left != 0, "no temporary file was left by two runs")
}

// An apply is killed while it makes a folder in a folder, and the disk fails while the undo sweeps:
// what stays is not taken for a file of others, and the next undo ends in the first tree.
func TestHostileTemporaryIsNoForeignFile(t *testing.T) {
	e := func() *converge.Engine {
		return engineOf(t, stage(things.Folders("/srv/f/g", "")...))
	}
	for cut := range 30 {
		for first := range 6 {
			for second := first + 1; second < first+12; second++ {
				n := node(t)
				n.CutAt(n.Touches() + cut)
				_, _ = e().Apply(t.Context(), n)
				n.Revive()
				n.Fail(n.Touches()+first, syscall.EIO)
				n.Fail(n.Touches()+second, syscall.EIO)
				res, _ := e().Undo(t.Context(), n, "all", nil)
				check.That(t, len(res.Left) == 0, "killed at touch %d, touches %d and %d failed: left %v", cut, first, second, res.Left)
				n.Reboot() // nothing fails any more
				undo(t, n, e(), "all")
				_, err := n.Stat("/srv/f")
				check.That(t, err != nil, "killed at touch %d, touches %d and %d failed: the folder stays", cut, first, second)
			}
		}
	}
}
