// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// stopped is a machine's tree in which a unit that failed counts as one that does not run: undo
// stops what a repair has started, and does not make it fail.
func stopped(n *simhost.Node) string {
	return strings.ReplaceAll(tree(n), " failed", " inactive")
}

// repairing is the engine that repairs a fault on a machine without a spec.
func repairing(t testing.TB, r stages.Repair) *converge.Engine {
	t.Helper()
	e := engine(t, "")
	e.Stages, e.Before, e.Repair = []converge.Stage{r.Stage()}, nil, r.Code
	return e
}

// repairable are the repairs that have something to do on a machine.
func repairable(t testing.TB, m machine) (list []stages.Repair) {
	t.Helper()
	for _, r := range stages.Repairs() {
		p, err := repairing(t, r).Plan(context.Background(), m.boot(t))
		if err == nil && len(p.Cannot()) == 0 && p.Now() > 0 {
			list = append(list, r)
		}
	}

	return list
}

// A repair is undone as every run is. It is journalled under its code.
func TestRepairAndUndo(t *testing.T) {
	repaired := map[string]bool{}
	for _, m := range machines(t) {
		for _, r := range repairable(t, m) {
			n := m.boot(t)
			first := stopped(n)
			res := apply(t, n, repairing(t, r))
			if res.Reboot != "" {
				continue
			}
			repaired[r.Code] = true
			p := plan(t, n, repairing(t, r))
			check.That(t, p.Now() <= 0, "%s on %s: still pending:\n%s", r.Code, m.name, namesNow(p.Changes))
			runs := converge.ReadJournal(n).Runs()
			check.That(t, len(runs) == 1 && runs[0].Repair == r.Code && runs[0].Result == "ok", "%s on %s: journalled as %+v", r.Code, m.name, runs)
			undo(t, n, engine(t, ""), "all")
			compare(t, r.Code+" on "+m.name+", undone", first, stopped(n))
		}
	}

	check.That(t, len(repaired) >= 2, "only %v had something to repair", repaired)
}

// An apply neither reverts nor adopts what a repair made: it ends as where another process had
// repaired the machine.
func TestApplyLeavesRepairs(t *testing.T) {
	tested := 0
	able := map[string][]stages.Repair{}
	for _, c := range lawCases(t) {
		key := string(c.machine.archive)
		if _, known := able[key]; !known {
			able[key] = repairable(t, c.machine)
		}
		for _, r := range able[key] {
			if c.wish.engine(t).Spec.Has(r.Section) {
				continue
			}
			n := c.machine.boot(t)
			first := stopped(n)
			if apply(t, n, repairing(t, r)).Reboot != "" {
				continue
			}
			repaired := stopped(n)
			other := repairedByHand(t, c.machine, r)
			if len(plan(t, n, c.wish.engine(t)).Cannot()) > 0 {
				continue
			}
			tested++
			apply(t, n, c.wish.engine(t))
			apply(t, other, c.wish.engine(t))
			compare(t, c.name+": applied after "+r.Code, stopped(other), stopped(n))
			apply(t, n, wish{}.engine(t)) // every section is gone
			compare(t, c.name+": all sections are gone", stopped(other), stopped(n))
			if len(converge.ReadJournal(n).Runs()) > 1 {
				undo(t, n, engine(t, ""), "")
				compare(t, c.name+": the apply is undone", repaired, stopped(n))
			}
			undo(t, n, engine(t, ""), "all")
			compare(t, c.name+": all is undone", first, stopped(n))
		}
	}

	check.That(t, tested >= 20, "only %d applies after a repair were tested", tested)
}

// repairedByHand is a machine that another process repaired: it has no journal.
func repairedByHand(t testing.TB, m machine, r stages.Repair) *simhost.Node {
	t.Helper()
	n := m.boot(t)
	apply(t, n, repairing(t, r))
	must.OK(t, n.Remove(converge.Home+"/journal.jsonl"))
	return n
}

// A repair lifts no hold, and supersedes no undo that was cut short without saying so.
func TestRepairLiftsNoHold(t *testing.T) {
	m, r := handlerLost(t)
	n := m.boot(t)
	apply(t, n, wish{text: labelsA}.engine(t))
	undo(t, n, engine(t, ""), "")
	held := converge.ReadJournal(n).Held()
	apply(t, n, repairing(t, r))
	if held == "" || converge.ReadJournal(n).Held() != held {
		t.Errorf("held %q, then %q", held, converge.ReadJournal(n).Held())
	}
	apply(t, n, repairing(t, r))
	check.That(t, converge.ReadJournal(n).Held() == held, "a repair with nothing to do has lifted the hold")
}

// A power cut at any touch of a repair: the same repair continues it, undo ends in the first tree,
// and an apply leaves what was made.
func TestRepairIsCutShort(t *testing.T) {
	m, r := handlerLost(t)
	whole := m.boot(t)
	first := stopped(whole)
	apply(t, whole, repairing(t, r))
	repaired := stopped(whole)
	for at := range whole.Touches() {
		n := m.boot(t)
		n.CutAt(at)
		_, err := repairing(t, r).Apply(context.Background(), n)
		must.That(t, err != nil, "not cut")
		n.Boot(simhost.LoseAll)
		switch at % 3 {
		case 0:
			apply(t, n, repairing(t, r))
			compare(t, "continued", repaired, stopped(n))
			runs := converge.ReadJournal(n).Runs()
			check.That(t, len(runs) <= 1, "cut at %d: %d runs", at, len(runs))
		case 1:
			unattended := wish{text: labelsA}.engine(t)
			unattended.Unattended = true
			_, err := unattended.Apply(context.Background(), n)
			must.That(t, err == nil || errors.As(err, new(trouble.Wait)), "%v", err)
			for _, run := range converge.ReadJournal(n).Runs() {
				if run.Repair != "" && slices.ContainsFunc(run.Makes, func(c converge.Change) bool { return c.Stage != "repair" }) {
					t.Errorf("cut at %d: the apply continued the repair", at)
				}
			}
		}

		undo(t, n, engine(t, ""), "all")
		compare(t, "undone", first, stopped(n))
	}
}

// handlerLost is a node with NVIDIA's runtime, and without the handler that runs it.
func handlerLost(t testing.TB) (machine, stages.Repair) {
	t.Helper()
	for _, m := range machines(t) {
		if m.name != "ubuntu24-h100" {
			continue
		}
		for _, r := range repairable(t, m) {
			if strings.HasPrefix(r.About, "add NVIDIA's handler") {
				return m, r
			}
		}
	}

	t.Fatal("cannot find the machine that lost its handler, or its repair")
	return machine{}, stages.Repair{}
}

// A repair starts from what it finds: what gpuadm made before stays, and undo of the repair
// restores what the repair found, not what was before gpuadm.
func TestRepairStartsFromWhatItFinds(t *testing.T) {
	const config = "/etc/containerd/config.toml"
	repairs := stages.Repairs()
	handler := repairs[slices.IndexFunc(repairs, func(r stages.Repair) bool {
		return r.Code == "RUN-001"
	})]
	tested := 0
	for _, m := range machines(t) {
		n := m.boot(t)
		const s = "[runtime]\nset_as_default = true\n"
		if m.name != "debian12-containerd16" && m.name != "ubuntu24-h100" { // containerd there has no other owner
			continue
		}
		apply(t, n, engine(t, s))
		made, err := n.ReadFile(config)
		name := "runtimes.nvidia"
		at := strings.Index(string(made), name)
		if err != nil || at < 0 || !strings.Contains(string(made), `default_runtime_name = "nvidia"`) {
			continue
		}
		edited := strings.ReplaceAll(string(made), name, "runtimes.other") // an operator takes the handler away, and leaves the default
		must.OK(t, n.WriteFile(config, []byte(edited), host.Attr{Mode: 0o644}))
		tested++
		apply(t, n, repairing(t, handler))
		after, _ := n.ReadFile(config)
		if text := string(after); !strings.Contains(text, name) || !strings.Contains(text, `default_runtime_name = "nvidia"`) || !strings.Contains(text, "runtimes.other") {
			t.Errorf("%s: the repair did not start from what it found:\n%s", m.name, text)
		}
		undo(t, n, engine(t, ""), "")
		undone, _ := n.ReadFile(config)
		check.That(t, string(undone) == edited, "%s: undo of the repair did not restore what the repair found:\n%s", m.name, undone)
	}

	check.That(t, tested != 0, "no machine was tested")
}

// machine is the recorded one with the fault.
func (b brokenMachine) machine(t *testing.T) machine {
	t.Helper()
	all := archives(t)
	i := slices.IndexFunc(all, func(m machine) bool { return m.name == b.on })
	must.That(t, i >= 0, "no recorded machine %s", b.on)
	text := string(all[i].archive)
	edits := b.edits
	if b.on == "debian13-containerd17" {
		edits = append(working(), edits...)
	}
	for _, e := range edits {
		if e.from == "" {
			text += "\n" + e.to
		} else if !strings.Contains(text, e.from) {
			t.Fatalf("%s has no %q", b.on, e.from)
		}

		if e.from != "" {
			text = strings.ReplaceAll(text, e.from, e.to)
		}
	}

	return machine{b.on, []byte(text)}
}

func (b brokenMachine) boot(t *testing.T) *simhost.Node {
	t.Helper()
	n := b.machine(t).boot(t)
	if b.after != nil {
		b.after(t, n)
	}
	return n
}

// roots are the codes of the root causes.
func roots(n *simhost.Node) (codes []string) {
	for _, c := range doctor.Examine(context.Background(), n, spec.Spec{}, doctor.Own{}).Causes {
		codes = append(codes, c.Code)
	}
	return codes
}

// A machine with one fault has one root cause, the right one. Its repair makes doctor content, and
// undo ends in the first tree.
func TestDoctorNamesTheRootAndRepairFixesIt(t *testing.T) {
	codes := roots(brokenMachine{on: "debian13-containerd17"}.boot(t))
	must.That(t, len(codes) == 0, "the machine without a fault has %v", codes)
	for _, b := range brokenMachines(t) {
		t.Run(b.name, func(t *testing.T) {
			n := b.boot(t)
			if codes := roots(n); !slices.Equal(codes, []string{b.code}) {
				causes := doctor.Examine(t.Context(), n, spec.Spec{}, doctor.Own{}).Causes
				t.Fatalf("root causes %v, want %s: %+v", codes, b.code, causes)
			}
			i := slices.IndexFunc(stages.Repairs(), func(r stages.Repair) bool {
				return r.Code == b.code
			})
			if i < 0 || b.then == unhealed {
				return
			}
			first := lasting(n)
			apply(t, n, repairing(t, stages.Repairs()[i]))
			codes := roots(n)
			check.That(t, strings.Join(codes, " ") == b.then, "after the repair: %v, want %q", codes, b.then)
			undo(t, n, engine(t, ""), "all")
			if !b.stays {
				compare(t, "undone", first, lasting(n))
			}
		})
	}
}

// rejected has an operator write a file that gpuadm can read and containerd cannot: its next start
// ends. The daemon's words are those of a key of another type in `containerd config dump`, which
// exits with 1.
func rejected(t *testing.T, n *simhost.Node) {
	const bad = "pause_threshold = \"many\""
	n.Install("containerd", simhost.Program{Looks: func([]string) bool { return true }, Run: func(f *files.Files, argv []string) ([]byte, error) {
		folder := "/etc/containerd"
		if i := slices.Index(argv, "--config"); i >= 0 { // else it reads the machine's own files
			folder = path.Dir(argv[i+1])
		}
		data, _ := f.ReadFile(folder + "/conf.d/60-logs.toml")
		if strings.Contains(string(data), bad) {
			return nil, &host.CommandError{
				Argv:   argv,
				Code:   1,
				Stderr: "containerd: toml: cannot decode TOML string into struct field of type float64",
			}
		}

		return nil, host.Later{Until: "a real machine"}
	}})
	must.OK(t, n.WriteFile("/etc/containerd/conf.d/60-logs.toml", []byte("version = 2\n[plugins.\"io.containerd.gc.v1.scheduler\"]\n  "+bad+"\n"), host.Attr{Mode: 0o644}))
	must.OK(t, n.Refuse("containerd.service", bad))
}

// Whatever doctor prints on a machine with two faults, typed, leaves all that served before.
func TestPrintedFixesNeverServeLess(t *testing.T) {
	synctest.Test(t, printedFixes) // else it waits two minutes for daemons that start and for an API server that does not answer
}

func printedFixes(t *testing.T) {
	var all, restarting []brokenMachine
	for _, b := range brokenMachines(t) {
		if b.on == "debian13-containerd17" {
			all = append(all, b)
			if b.after != nil {
				restarting = append(restarting, b)
			}
		}
	}

	tested, refused := 0, 0
	for _, one := range restarting {
		for _, other := range all {
			two, ok := one.with(other)
			if !ok {
				continue
			}
			t.Logf("%s, %s", one.name, other.name)
			serves(t, two.boot(t), &tested, &refused)
		}
	}

	for name, pair := range incident.Pairs(t) {
		t.Log(name)
		w := incident.Joined(t, true)
		for _, i := range pair.Of {
			w.Do(i)
		}
		serves(t, w.Node(), &tested, &refused)
	}

	check.That(t, tested >= 100 && refused >= 5, "%d commands were tested, %d refused", tested, refused)
}

// serves types what doctor prints, and wants all units that were active before to be active after
// it.
func serves(t *testing.T, n *simhost.Node, tested, refused *int) {
	t.Helper()
	commands := []string{"gpuadm repair RUN-002", "gpuadm repair KUB-007"} // of an earlier report
	for _, cause := range doctor.Examine(t.Context(), n, spec.Spec{}, doctor.Own{}).Causes {
		commands = append(commands, cause.Commands...)
		if slices.ContainsFunc(stages.Repairs(), func(r stages.Repair) bool { return r.Code == cause.Code }) {
			commands = append(commands, "gpuadm repair "+cause.Code)
		}
	}

	for _, command := range commands {
		before := n.Units()
		err := typed(t, n, command)
		*tested++
		if err != nil {
			*refused++
		}
		for line := range strings.Lines(before) {
			words := strings.Fields(line)
			if len(words) > 2 && words[2] == "active" && !strings.Contains(n.Units(), strings.Join(words[:3], " ")) {
				t.Errorf("%q has ended %s (%v)", command, words[0], err)
			}
		}
	}
}

// with is a machine with both faults; ok is false where they change the same text.
func (b brokenMachine) with(o brokenMachine) (two brokenMachine, ok bool) {
	for _, e := range o.edits {
		if e.from != "" && slices.ContainsFunc(b.edits, func(x swap) bool { return x.from == e.from }) {
			return b, false
		}
	}

	two = b
	two.edits = slices.Concat(b.edits, o.edits)
	two.after = func(t *testing.T, n *simhost.Node) {
		for _, after := range []func(*testing.T, *simhost.Node){b.after, o.after} {
			if after != nil {
				after(t, n)
			}
		}
	}

	return two, b.name != o.name
}

// typed executes the parts of a printed command that the simulated machine knows: gpuadm's own, and
// systemctl's.
func typed(t *testing.T, n *simhost.Node, command string) (err error) {
	for part := range strings.SplitSeq(command, " && ") {
		words := strings.Fields(strings.TrimPrefix(trouble.Commands(part, trouble.Plain), "sudo "))
		switch i := slices.IndexFunc(stages.Repairs(), func(r stages.Repair) bool { return r.Code == words[len(words)-1] }); {
		case i >= 0 && words[1] == "repair":
			_, err = repairing(t, stages.Repairs()[i]).Apply(t.Context(), n)
		case words[0] == "systemctl" && len(words) == 3 && words[1] == "restart":
			err = n.SetUnit(t.Context(), strings.TrimSuffix(words[2], ".service")+".service", host.UnitChange{Job: "restart"})
		}
	}
	return err
}

// lasting is a machine's tree without what settles, which has no state to go back to: that a daemon
// has read its files.
func lasting(n *simhost.Node) string {
	return strings.ReplaceAll(stopped(n), " stale", " fresh")
}

// Each repair is of a fault that doctor names, and doctor names no repair that there is not.
func TestRepairsAreOfChecks(t *testing.T) {
	known := map[string]bool{}
	for _, c := range doctor.Checks() {
		known[c.Code] = true
		code, is := strings.CutPrefix(c.Command, "sudo gpuadm repair ")
		if is && !slices.ContainsFunc(stages.Repairs(), func(r stages.Repair) bool { return r.Code == code }) {
			t.Errorf("%s names the repair %s, which there is not", c.Code, code)
		}
	}

	for _, r := range stages.Repairs() {
		check.That(t, known[r.Code], "no check has the code of the repair %s", r.Code)
	}
}
