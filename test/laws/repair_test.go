// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// stopped is a machine's tree in which a unit that failed counts as one that does not run: undo stops what a repair has started, and
// does not make it fail.
func stopped(n *simhost.Node) string { return strings.ReplaceAll(tree(n), " failed", " inactive") }

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
			if p := plan(t, n, repairing(t, r)); p.Now() > 0 {
				t.Errorf("%s on %s: still pending:\n%s", r.Code, m.name, names(p.Changes))
			}
			if runs := converge.ReadJournal(n).Runs(); len(runs) != 1 || runs[0].Repair != r.Code || runs[0].Result != "ok" {
				t.Errorf("%s on %s: journalled as %+v", r.Code, m.name, runs)
			}
			undo(t, n, engine(t, ""), "all")
			compare(t, r.Code+" on "+m.name+", undone", first, stopped(n))
		}
	}
	if len(repaired) < 2 {
		t.Errorf("only %v had something to repair", repaired)
	}
}

// An apply neither reverts nor adopts what a repair made: it ends as where another process had repaired the machine.
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
	if tested < 20 {
		t.Errorf("only %d applies after a repair were tested", tested)
	}
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
	if converge.ReadJournal(n).Held() != held {
		t.Error("a repair with nothing to do has lifted the hold")
	}
}

// A power cut at any touch of a repair: the same repair continues it, undo ends in the first tree, and an apply leaves what was made.
func TestRepairIsCutShort(t *testing.T) {
	m, r := handlerLost(t)
	whole := m.boot(t)
	first := stopped(whole)
	apply(t, whole, repairing(t, r))
	repaired := stopped(whole)
	for at := range whole.Touches() {
		n := m.boot(t)
		n.CutAt(at)
		if _, err := repairing(t, r).Apply(context.Background(), n); err == nil {
			t.Fatal("not cut")
		}
		n.Boot(simhost.LoseAll)
		switch at % 3 {
		case 0:
			apply(t, n, repairing(t, r))
			compare(t, "continued", repaired, stopped(n))
			if runs := converge.ReadJournal(n).Runs(); len(runs) > 1 {
				t.Errorf("cut at %d: %d runs", at, len(runs))
			}
		case 1:
			unattended := wish{text: labelsA}.engine(t)
			unattended.Unattended = true
			if _, err := unattended.Apply(context.Background(), n); err != nil && !errors.As(err, new(trouble.Wait)) {
				t.Fatal(err)
			}
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

// A repair starts from what it finds: what gpuadm made before stays, and undo of the repair restores what the repair found, not what was
// before gpuadm.
func TestRepairStartsFromWhatItFinds(t *testing.T) {
	const config = "/etc/containerd/config.toml"
	repairs := stages.Repairs()
	handler := repairs[slices.IndexFunc(repairs, func(r stages.Repair) bool { return r.Code == "RUN-001" })]
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
		if undone, _ := n.ReadFile(config); string(undone) != edited {
			t.Errorf("%s: undo of the repair did not restore what the repair found:\n%s", m.name, undone)
		}
	}
	if tested == 0 {
		t.Error("no machine was tested")
	}
}
