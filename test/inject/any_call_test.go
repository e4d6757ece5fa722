// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/inject"
	"github.com/gpuadm/gpuadm/test/must"
)

// scenario is a command in which something goes wrong, on a root folder that earlier commands have
// made of the fresh one.
type scenario struct {
	name    string
	earlier []string
	command string
	// apply ends where the command does, or for an undo, where it begins.
	apply string
	// points is how many injections of each kind the sample has.
	points int
}

var scenarios = []scenario{
	{name: "apply", command: "apply", apply: "apply", points: 2},
	{name: "install", earlier: []string{"apply"}, command: "apply --install", apply: "apply --install", points: 1},
	{name: "changed", earlier: []string{"apply"}, command: "apply -f second.toml", apply: "apply -f second.toml", points: 1},
	{name: "undo", earlier: []string{"apply", "apply -f second.toml"}, command: "undo --yes", apply: "apply -f second.toml", points: 1},
	{name: "undo-all", earlier: []string{"apply --install"}, command: "undo --to all", apply: "apply --install", points: 1},
}

// A fault is a kind of injection.
type fault struct {
	name string
	at   inject.Injection
	// errnos come by turns, the next one at the next call.
	errnos []unix.Errno
	// seldom asks for each twentieth call also where every call is asked for.
	seldom bool
}

var faults = []fault{
	{name: "kill", at: inject.Injection{Kind: inject.Kill}},
	// Only calls change files, so a kill before the next call finds the same files. What is left is
	// the end of the last call, and that the two are the same.
	{name: "kill-after", at: inject.Injection{Kind: inject.KillAfter}, seldom: true},
	{name: "torn", at: inject.Injection{Kind: inject.Torn}},
	{name: "error", at: inject.Injection{Kind: inject.Errno}, errnos: []unix.Errno{unix.EIO, unix.ENOSPC}},
	{name: "full", at: inject.Injection{Kind: inject.Full, Errno: unix.ENOSPC}},
	{name: "signal", at: inject.Injection{Kind: inject.Signal, Signal: unix.SIGTERM}},
}

// injection is the fault at the n-th call of those that it counts.
func (f fault) injection(n int) inject.Injection {
	in := f.at
	in.At = n
	if len(f.errnos) > 0 {
		in.Errno = f.errnos[(n+check.Turn(len(f.errnos)))%len(f.errnos)]
	}
	return in
}

// prepared is a scenario's root folder, ready to be copied, and the trees that matter.
type prepared struct {
	scenario
	start string
	// first is the tree that gpuadm has never touched, straight that of the command when nothing
	// goes wrong, and applied the one in which the next apply shall end.
	first, straight, applied tree
	// calls are the mutating calls of the command when nothing goes wrong.
	calls []inject.Call
	// judged are the states that an injection has left, and from which the next commands have run.
	judged sync.Map
}

// TestAnyCall lets something go wrong at the mutating calls of a command, at one of them in each
// run, and shows that both the next apply and the next undo end as if nothing had.
func TestAnyCall(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := prepare(t, s)
			was := state(t, p.start)
			t.Cleanup(func() {
				check.That(t, state(t, p.start) == was, "a run has changed a file in place that copies of the folder share")
			})
			for i, f := range faults {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					p.each(t, f, i)
				})
			}
		})
	}
}

func prepare(t *testing.T, s scenario) *prepared {
	t.Helper()
	p := &prepared{scenario: s, start: filepath.Join(folder(t), "root")}
	fresh(t, p.start)
	p.first, _ = readTree(t, p.start)
	for _, command := range s.earlier {
		r := run(t, p.start, command)
		must.That(t, r.Exit == 0, "%s: exit %d: %s", command, r.Exit, r.Stderr)
	}

	root := copyTree(t, p.start)
	r, err := inject.Run(gpuadm(t, root, s.command), inject.Injection{})
	must.That(t, err == nil && r.Exit == 0, "%s: exit %d, %v: %s", s.command, r.Exit, err, r.Stderr)
	p.calls = r.Calls
	p.straight, _ = readTree(t, root)
	p.applied = p.straight
	if strings.HasPrefix(s.command, "undo") {
		p.applied, _ = readTree(t, p.start)
	}
	t.Logf("%s makes %d mutating calls", s.command, len(p.calls))
	return p
}

// each injects at every call, until the command ends before the injection is reached; or in the
// sample, at some of those that a run without injection makes, other ones for each fault. A night
// runs a part.
func (p *prepared) each(t *testing.T, f fault, number int) {
	all := 0
	for _, c := range p.calls {
		if f.at.Counts(c) {
			all++
		}
	}

	first := 1
	step := 1
	switch {
	case !whole:
		step = max(1, all/p.points)
		first += number * step / len(faults)
	case f.seldom:
		step = 20
		first = 1 + (all-1)%step // the last call is among them
	}
	if whole {
		which, of := check.Part()
		first += (which - 1) * step
		step *= of
	}

	for n := first; whole || n <= all; n += step {
		reached := n <= all // as long as -run selects other ones
		t.Run(fmt.Sprint(n), func(t *testing.T) { reached = p.goWrong(t, f.injection(n)) })
		if !reached {
			return
		}
	}
}

// goWrong runs the command with one injection, and then each of the commands that may come next.
func (p *prepared) goWrong(t *testing.T, in inject.Injection) (reached bool) {
	root := copyTree(t, p.start)
	r := must.Get(inject.Run(gpuadm(t, root, p.command), in))(t)
	if r.Hit != nil {
		t.Logf("%s: %v at %s", p.command, in, strings.ReplaceAll(r.Hit.String(), root, ""))
	}
	judge(t, p.command, r)
	switch is, _ := readTree(t, root); {
	case r.Hit == nil || r.Exit == 0:
		expect(t, p.command, r, is, p.straight)
	case in.Errno != 0:
		name := named(*r.Hit, root)
		for _, part := range []string{name, in.Errno.Error()} {
			check.That(t, strings.Contains(r.Stderr, part), "%s does not say %q: %s", p.command, part, oneLine(r.Stderr))
		}
	case in.Kind == inject.Signal && r.Exit == terminated: // before gpuadm listens: onSignal in cmd/gpuadm
		start, _ := readTree(t, p.start)
		check.None(t, strings.Join(is.differs(start), "\n"), "%s was terminated, and has changed", p.command)
	case in.Kind != inject.Signal && r.Exit != 128+int(unix.SIGKILL):
		t.Errorf("%s was not killed: exit %d", p.command, r.Exit)
	}

	if _, before := p.judged.LoadOrStore(state(t, root), true); before {
		return r.Hit != nil // most calls change nothing of what a kill or an error leaves
	}
	goOn(t, copyTree(t, root), p.apply, p.applied)
	goOn(t, root, "undo --to all", p.first)
	return r.Hit != nil
}

const terminated = 128 + int(unix.SIGTERM)

// goOn runs the command that comes next, and wants it to end in a tree without leftovers.
func goOn(t *testing.T, root, command string, want tree) {
	t.Helper()
	r := run(t, root, command)
	judge(t, "then "+command, r)
	is, wrong := readTree(t, root)
	expect(t, "then "+command, r, is, want)
	if len(wrong) > 0 {
		t.Errorf("then %s: %s (%d such)", command, wrong[0], len(wrong))
	}
}

// expect wants a command to have ended well, in a tree.
func expect(t *testing.T, command string, r inject.Result, is, want tree) {
	t.Helper()
	check.That(t, r.Exit == 0, "%s: exit %d: %s", command, r.Exit, oneLine(r.Stderr))
	if lines := is.differs(want); len(lines) > 0 {
		t.Errorf("%s: %s (%d such)", command, lines[0], len(lines))
	}
}

// judge wants what a command says to be fit for people: something if it failed, no trace of a
// crash, and no blame on others, since nothing but gpuadm was at work here.
func judge(t *testing.T, command string, r inject.Result) {
	t.Helper()
	check.That(t, r.Exit == 0 || r.Exit == 128+int(unix.SIGKILL) || r.Exit == terminated || strings.TrimSpace(r.Stderr) != "", "%s: exit %d, and not a word", command, r.Exit)
	for line := range strings.Lines(r.Stdout + r.Stderr) {
		for _, never := range []string{
			"panic:", "goroutine ", "fatal error:", // of Go
			"changed since", "not ours", "changed outside gpuadm",
		} {
			check.That(t, !strings.Contains(line, never), "%s says %q: %s", command, never, oneLine(line))
		}
	}
}

// named is the name under which a message shall speak of the file that a call is about: that of its
// folder if the file has only a temporary one, or is a blob, whose name says nothing to an
// operator.
func named(c inject.Call, root string) string {
	before, after, two := strings.Cut(c.What, " → ")
	if two && strings.HasPrefix(c.Name, "rename") {
		before = after
	}
	name := strings.TrimPrefix(before, root)
	if strings.HasPrefix(path.Base(name), ".gpuadm-") || path.Base(path.Dir(name)) == "blobs" {
		name = path.Dir(name)
	}
	return name
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
