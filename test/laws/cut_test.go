// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pairs"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Law 8: a power cut before any touch of an apply or of an undo, then any command.

// A straight run is an apply and an undo of all that nothing interrupts.
type straight struct {
	machine        machine
	e              func() *converge.Engine
	bare           string         // the tree before gpuadm
	first, applied string         // the trees before and after the apply
	begun          int            // the touches of what gpuadm has done before
	made, undone   int            // the touches after the apply, and after all is undone
	others         *regexp.Regexp // finds whether units that gpuadm does not restart run with their current files
	kept           *simhost.Node  // has gone through both, and keeps what it was before each touch
	judged         map[string]bool
}

func run(t *testing.T, m machine, e func() *converge.Engine, already ...func(*simhost.Node)) straight {
	t.Helper()
	n := m.boot(t)
	for _, do := range already {
		do(n)
	}
	bare := n.Clone()
	s := straight{
		machine: m,
		e:       e,
		kept:    n,
		judged:  map[string]bool{},
	}
	n.Reboot() // what is enabled runs, as after each power cut
	s.bare, s.first, s.begun = tree(n), tree(n), n.Touches()
	if len(already) > 0 {
		undo(t, bare, e(), "all")
		s.bare = tree(bare)
	}
	n.Keep()
	apply(t, n, e())
	s.applied, s.made = tree(n), n.Touches()
	clean(t, "applied", n)
	undo(t, n, e(), "all")
	s.undone = n.Touches()
	units := []string{"-"}
	for _, stale := range staleUnit.FindAllStringSubmatch(s.applied+tree(n), -1) {
		units = append(units, regexp.QuoteMeta(stale[1]))
	}
	s.others = regexp.MustCompile(`(?m)^((?:` + strings.Join(units, "|") + `) \w+ active) (?:fresh|stale)$`)
	s.settled(t, "applied and undone", s.bare, n)
	return s
}

var staleUnit = regexp.MustCompile(`(?m)^(\S+) \w+ active stale$`)

// settled holds that the machine has come to a tree, and that no temporary file is left anywhere.
// Units that gpuadm leaves running with their old files, a kubelet that has joined, have read them
// where there was a boot between.
func (s straight) settled(t testing.TB, what, want string, n *simhost.Node) {
	t.Helper()
	compare(t, what, s.withoutBootDecided(want), s.withoutBootDecided(tree(n)))
	clean(t, what, n)
}

// withoutBootDecided is a tree without what only a boot decides, and without the time of a list
// that packages.TouchList was touching.
func (s straight) withoutBootDecided(tree string) string {
	return listTimes.ReplaceAllString(s.others.ReplaceAllString(tree, "$1"), "$1")
}

var listTimes = regexp.MustCompile(`(?m)^(/var/lib/apt/lists/\S+ file) .*`)

// cut is the machine after a power cut before a touch of its apply, or of the undo after it, and a
// boot. What follows is judged once for each state, since most touches change nothing of what a
// power cut leaves: nil if that was done for this law.
func (s straight) cut(t *testing.T, law string, touch int, loss simhost.Loss) *simhost.Node {
	t.Helper()
	n := s.kept.Kept(touch)
	must.That(t, n != nil, "touch %d: it never came", touch)
	n.Boot(loss)
	if loaded, _ := n.ReadDir("/sys/module"); bytes.Contains(s.machine.archive, []byte("\n-- simulated-net/")) {
		for _, name := range loaded { // no boot has loaded them yet
			must.Get(n.Do(t.Context(), "rmmod", name))(t)
		}
	}

	state := law + n.State()
	if s.judged[state] {
		return nil
	}
	s.judged[state] = true
	return n
}

// A cutLaw is what a command makes of a machine after a power cut in an apply, or in the undo after
// it.
type cutLaw struct {
	name    string
	undoing bool
	law     func(t *testing.T, s straight, n *simhost.Node, what string)
}

var cutLaws = []cutLaw{
	{"apply cut, then apply", false, byHand},
	{"apply cut, then boot", false, func(t *testing.T, s straight, n *simhost.Node, what string) {
		to, want := "", s.first
		if must.Get(s.e().Status(t.Context(), n.View()))(t).Unfinished == "" { // the boot continues nothing: it may be a run of its own, or none
			to, want = "all", s.bare
		}
		boot(t, n, s.e(), what)
		s.settled(t, what, s.applied, n)
		undoAfter(t, n, s.e(), to, what)
		s.settled(t, what+", undone", want, n)
	}},
	{"apply cut, then undo all", false, undone("all")},
	{"apply cut, then undo", false, undone("")},
	{"undo cut, then undo all", true, undone("all")},
	{"undo cut, then undo", true, undone("")},
	{"undo cut, then boot", true, booted},
	{"undo cut, then apply", true, byHand},
}

// Each is tested at some touches of each case, and at all of them in a nightly run.
func TestPowerCutThenAnyCommand(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		cuts(t, run(t, m, e), 2, losses)
	})
}

// span says which touches those are.
func (s straight) span(c cutLaw) (from, many int) {
	if c.undoing {
		return s.made, s.undone - s.made
	}
	return s.begun, s.made - s.begun
}

// cuts judges some touches of a case.
func cuts(t *testing.T, s straight, some int, losses func(cut int) []simhost.Loss) {
	for _, c := range cutLaws {
		t.Run(c.name, func(t *testing.T) {
			from, many := s.span(c)
			for _, at := range sample(t, many, some) {
				for _, loss := range losses(at) {
					if n := s.cut(t, c.name, from+at, loss); n != nil {
						c.law(t, s, n, fmt.Sprintf("%s, touch %d of %d, %v", c.name, at, many, loss))
					}
				}
			}
		})
	}
}

//go:embed testdata/shared-modules.txtar
var sharedFiles string

// sharing is the machine for shared modules, with what stays of packages, and the engine for those
// of a branch.
func sharing(t *testing.T) (m machine, of func(branch string) *converge.Engine) {
	return machine{"ubuntu24", append(pairs.Archive(t), sharedFiles...)}, func(branch string) *converge.Engine {
		return engine(t, pairs.Specs[slices.IndexFunc(pairs.Specs, func(s struct{ Name, Text string }) bool {
			return s.Name == branch+" shared modules"
		})].Text)
	}
}

// TestFallbackKeepsItsModules: the kernel that ran before keeps its modules while it is installed.
// Older ones lose theirs.
func TestFallbackKeepsItsModules(t *testing.T) {
	m, of := sharing(t)
	n, kernels := m.boot(t), []string{pairs.Kernel, "6.8.0-90-generic", "6.8.0-91-generic"}
	has := func(what string, want ...string) {
		t.Helper()
		apply(t, n, of("580"))
		without := func(k string) bool {
			return !strings.Contains(tree(n), k+"/updates/gpuadm/nvidia.ko ")
		}
		check.List(t, slices.DeleteFunc(slices.Clone(kernels), without), want, "%s: modules of", what)
		check.None(t, namesNow(plan(t, n, of("580")).Changes), "%s: a second apply changes", what)
	}

	for i, next := range kernels[1:] {
		has("before "+next, kernels[max(0, i-1):i+1]...)
		pairs.Write(t, n, "/usr/lib/modules/"+next+"/modules.dep", "")
		has(next+" arrives", kernels[max(0, i-1):i+2]...)
		pairs.Write(t, n, "/proc/sys/kernel/osrelease", next+"\n")
		n.Reboot()
		has(next+" runs", kernels[i:i+2]...)
	}

	must.OK(t, n.Remove("/usr/lib/modules/"+kernels[1]+"/modules.dep"))
	has("the fallback is removed", kernels[2])
}

// TestSharedModulesCut: a power cut while modules that were built once are installed, or undone.
func TestSharedModulesCut(t *testing.T) {
	m, of := sharing(t)
	for name, already := range map[string]func(*simhost.Node){
		"first":          func(*simhost.Node) {},
		"another branch": func(n *simhost.Node) { apply(t, n, of("570")) },
		"another kernel": func(n *simhost.Node) {
			apply(t, n, of("580"))
			pairs.Write(t, n, "/usr/lib/modules/6.8.0-90-generic/modules.dep", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := run(t, m, func() *converge.Engine { return of("580") }, already)
			must.That(t, strings.Contains(s.applied, "updates/gpuadm/nvidia.ko") && !strings.Contains(s.applied, "/var/lib/dkms/nvidia"), "no shared modules:\n%s", s.applied)
			cuts(t, s, 6, func(int) []simhost.Loss { return []simhost.Loss{simhost.LoseNothing} }) // the simulated dpkg does not sync as dpkg does
		})
	}
}

func byHand(t *testing.T, s straight, n *simhost.Node, what string) {
	apply(t, n, s.e())
	s.settled(t, what, s.applied, n)
	undoAfter(t, n, s.e(), "all", what)
	s.settled(t, what+", undone", s.bare, n)
}

// undone is an undo of all, or of the last run: what gpuadm had done before stays, unless that was
// the last run, or all was being undone.
func undone(to string) func(t *testing.T, s straight, n *simhost.Node, what string) {
	return func(t *testing.T, s straight, n *simhost.Node, what string) {
		status := must.Get(s.e().Status(context.Background(), n.View()))(t)
		undoAfter(t, n, s.e(), to, what)
		if to == "" && !status.Undoing && status.Held == "" && len(status.Runs) > 1 {
			compare(t, what, s.lost(s.first), s.lost(tree(n)))
			return
		}
		s.settled(t, what, s.bare, n)
	}
}

// A machine that boots on a cut undo finishes it, and is held: kubelet does not start on half of
// either.
func booted(t *testing.T, s straight, n *simhost.Node, what string) {
	began := undoing(t, s, n, what)
	res := boot(t, n, s.e(), what)
	if !began {
		s.settled(t, what+", which had not begun", s.applied, n)
		return
	}
	s.settled(t, what, s.bare, n)
	status, err := s.e().Status(context.Background(), n.View())
	must.That(t, err == nil && res.Held != "" && !status.Undoing && status.Held != "",
		"%s: the boot says held %q; status says held %q, undoing %t, %v", what, res.Held, status.Held, status.Undoing, err)
}

// lost is a tree without the GPUs' states and the modules, which a boot loses.
func (s straight) lost(tree string) string {
	return gpuLines.ReplaceAllString(s.withoutBootDecided(tree), "")
}

var gpuLines = regexp.MustCompile(`(?m)^(GPU |/sys/module/|/sys/bus/pci/devices/\S+/uevent ).*\n`)

// undoing says whether the undo that was cut is known. One that is not has touched nothing.
func undoing(t *testing.T, s straight, n *simhost.Node, what string) bool {
	t.Helper()
	status := must.Get(s.e().Status(context.Background(), n.View()))(t)
	known := status.Undoing || status.Held != ""
	if !known {
		compare(t, what+", and nothing knows that there was an undo", s.lost(s.applied), s.lost(tree(n)))
	}
	return known
}

// boot is the apply of a boot.
func boot(t testing.TB, n *simhost.Node, e *converge.Engine, what string) converge.Result {
	t.Helper()
	e.Unattended = true
	res, err := e.Apply(context.Background(), n)
	must.That(t, err == nil || awaitsDriver(err), "%s, then booted: %v", what, err)
	return res
}

func undoAfter(t testing.TB, n *simhost.Node, e *converge.Engine, to, what string) converge.Result {
	t.Helper()
	res, err := e.Undo(context.Background(), n, to, nil)
	must.That(t, err == nil, "%s: cannot undo: %v", what, err)
	return res
}

// installing is the engine of apply --install.
func installing(t testing.TB, text string) *converge.Engine {
	e := engine(t, text)
	e.Stages = append([]converge.Stage{stages.Install([]byte("gpuadm\n"))}, e.Stages...)
	return e
}

// Law 8, with the install stage in front: an undo that a kill or a power cut ends at any touch is
// finished by the next one. A kill loses nothing of the disk and leaves the units as they run; a
// power cut boots the machine.
func TestUndoOfInstallCutAtEveryTouch(t *testing.T) {
	tested := map[string]bool{}
	for _, m := range machines(t) {
		e := func() *converge.Engine { return installing(t, sections["default"]) }
		if len(plan(t, m.boot(t), e()).Cannot()) > 0 {
			e = func() *converge.Engine { return installing(t, "") }
		}
		whole := m.boot(t)
		whole.Reboot()
		made := fmt.Sprint(whole.Live(), namesNow(plan(t, whole, e()).Changes))
		if tested[made] {
			continue // another machine like one before it
		}
		tested[made] = true
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := run(t, m, e)
			for at := range every(s.undone - s.made) {
				cut, what := s.made+at, fmt.Sprintf("touch %d of undo", at)
				n := s.kept.Kept(cut)
				n.Revive()
				undone("all")(t, s, n, "killed at "+what)
				if n := s.cut(t, "undo", cut, losses(cut)[cut%len(losses(cut))]); n != nil {
					undone("all")(t, s, n, "power cut at "+what)
				}
			}
		})
	}

	check.That(t, len(tested) >= 4, "only %d machines tested", len(tested))
}

// Law 8, for a roll-back: a stage fails at a touch, and the power is cut at a touch of its
// roll-back. Then an apply ends in the tree of a straight run, and undo in the first tree. Where
// the restart of a daemon failed and its file was about to be restored, the next boot finds both as
// desired: an apply has nothing to make, and undo must still restore the file.
func TestPowerCutInARollBack(t *testing.T) {
	cuts := 0
	for _, c := range lawCases(t) {
		if c.wish.install || c.wish.needs != "" {
			continue
		}
		e := func() *converge.Engine { return c.wish.engine(t) }
		s := run(t, c.machine, e)
		for _, at := range sample(t, s.made, 4) {
			failed := c.boot(t)
			failed.Fail(at, syscall.EIO)
			failed.Keep()
			_, _ = e().Apply(context.Background(), failed)
			touches := failed.Touches()
			for _, k := range wholeSample(t, touches-at-1, 4) {
				cuts++
				for _, loss := range losses(k) {
					n := failed.Kept(at + 1 + k)
					n.Boot(loss)
					byHand(t, s, n, fmt.Sprintf("%s, touch %d failed, power cut at touch %d of %d, %v", c.name, at, at+1+k, touches, loss))
				}
			}
		}
	}

	check.That(t, cuts >= 100 || testing.Short(), "only %d cuts", cuts)
}
