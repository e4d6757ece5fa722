// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestStepsInWords(t *testing.T) {
	m := model(t, "A100-40")
	steps := must.Get(m.Steps(state(t, "on 1g.5gb@0 3g.20gb@4(1c,1c)"), state(t, "off")))(t)
	back := must.Get(m.Steps(state(t, "off"), state(t, "on 3g.20gb@4(2c,1c)")))(t)
	var words []string
	for _, s := range append(steps, back...) {
		words = append(words, s.String())
	}
	want := `destroy compute instance 1c in 1g.5gb at 0
destroy 1g.5gb at 0
destroy compute instance 1c in 3g.20gb at 4
destroy compute instance 1c in 3g.20gb at 4
destroy 3g.20gb at 4
switch MIG mode off
reset the GPU
switch MIG mode on
reset the GPU
create 3g.20gb at 4
create compute instance 2c in 3g.20gb at 4
create compute instance 1c in 3g.20gb at 4`
	got := strings.Join(words, "\n")
	check.That(t, got == want, "got\n%s\nwant\n%s", got, want)
}

// TestFailureInWords: the error of each kind of step is a sentence.
func TestFailureInWords(t *testing.T) {
	of := Step{Name: "3g.20gb", At: host.Span{Start: 4, Size: 4}, Slices: 1}
	for do, want := range map[Action]string{
		ModeOn:          "cannot switch MIG mode on for GPU 0000:17:00.0: x",
		ModeOff:         "cannot switch MIG mode off for GPU 0000:17:00.0: x",
		Reset:           "cannot reset GPU 0000:17:00.0: x",
		DestroyCompute:  "cannot destroy compute instance 1c in 3g.20gb at 4 on GPU 0000:17:00.0: x",
		DestroyInstance: "cannot destroy 3g.20gb at 4 on GPU 0000:17:00.0: x",
		CreateInstance:  "cannot create 3g.20gb at 4 on GPU 0000:17:00.0: x",
		CreateCompute:   "cannot create compute instance 1c in 3g.20gb at 4 on GPU 0000:17:00.0: x",
	} {
		of.Do = do
		f := &Failure{
			RolledBack: RolledBack{GPU: "0000:17:00.0"},
			Step:       of,
			Err:        errors.New("x"),
		}
		check.Equal(t, f.Error(), want, "got")
		check.Equal(t, explain(f, nil).(*trouble.Error).What, want, "the engine says")
	}
}

// Beside partitions that were made outside gpuadm ours alone go.
func TestTakeOut(t *testing.T) {
	state := func(text string) converge.State {
		s := must.Get(ParseState(text))(t)
		return converge.State(s.String())
	}

	const ours, theirs, old = " 3g.20gb@0", " 1g.5gb@6", " 2g.10gb@4"
	for name, c := range map[string]struct{ found, before, after, rest, left string }{
		"lost by a reboot":   {"on", "off", "on" + ours, "off", ""},
		"beside theirs":      {"on" + ours + theirs, "on", "on" + ours, "on" + theirs, ""},
		"of another mode":    {"on" + ours + theirs, "off", "on" + ours, "on" + theirs, "GPU a has "},
		"of another layout":  {"on" + ours + theirs, "on" + old, "on" + ours, "on" + theirs, "GPU a has "},
		"of the same layout": {"on" + ours + old + theirs, "on" + old, "on" + ours + old, "on" + old + theirs, ""},
	} {
		rest, left, err := gpu{address: "a"}.TakeOut(nil, state(c.found), state(c.before), state(c.after))
		problems := strings.Join(left, "\n")
		check.That(t, err == nil && rest == state(c.rest) && (problems == "") == (c.left == "") && strings.HasPrefix(problems, c.left),
			"%s: %q, left %q, %v", name, rest, left, err)
	}
}

// TestBusy: instances in use stay if there is any other way, and are named if not.
func TestBusy(t *testing.T) {
	m := model(t, "A100-40")
	for _, c := range []struct{ found, busy, want, target, disturbs string }{
		// Without use, keeping the two 1g and the 2g would be as good: one goes either way.
		{"on 1g.5gb@0 1g.5gb@1 2g.10gb@2 3g.20gb@4", "@4", "3,2,2", "on 2g.10gb@0 2g.10gb@2 3g.20gb@4", ""},
		// One instance in use counts more than two that are not.
		{"on 1g.5gb@0 1g.5gb@2 3g.20gb@4", "@4", "3,4", "on 4g.20gb@0 3g.20gb@4", ""},
		{"on 1g.5gb@0 1g.5gb@1 2g.10gb@4", "@4", "3,3", "on 3g.20gb@0 3g.20gb@4", "2g.10gb@4"},
		{"on 2g.10gb@0 3g.20gb@4", "@0", "7", "on 7g.40gb@0", "2g.10gb@0"},
		{"on 1g.5gb@0 1g.5gb@1 1g.5gb@4", "@4", "1,3", "on 3g.20gb@0 1g.5gb@4", ""},
		{"on 1g.5gb@0 1g.5gb@1 1g.5gb@4", "@1", "1,3", "on 1g.5gb@1 3g.20gb@4", ""},
	} {
		found := state(t, c.found)
		for i := range found.Parts {
			found.Parts[i].Busy = strings.HasSuffix(found.Parts[i].String(), c.busy)
		}
		l := Layout{Enabled: true}
		for _, g := range strings.Split(c.want, ",") {
			l.Wants = append(l.Wants, Want{Profile: g + "g", Start: Anywhere})
		}
		f := must.Get(m.Fit(found, l))(t)
		var disturbs []string
		for _, p := range f.Disturbs {
			disturbs = append(disturbs, p.String())
		}
		check.That(t, f.Target.String() == c.target && strings.Join(disturbs, " ") == c.disturbs,
			"%s, %s in use, to %s: %s disturbing %v; want %s disturbing %s", c.found, c.busy, c.want, f.Target, disturbs, c.target, c.disturbs)
		again, err := m.Fit(f.Target, l)
		check.That(t, err == nil && again.Target.String() == f.Target.String() && again.Destroys+again.Creates <= 0, "planning again from %s: %+v, %v", f.Target, again, err)
	}
}

// TestBusyCompute: to change the compute instances of an instance in use disturbs it, and another
// one is taken if there is.
func TestBusyCompute(t *testing.T) {
	m := model(t, "A100-40")
	want := Layout{
		Enabled: true,
		Wants:   []Want{{Profile: "3g", Start: Anywhere, Compute: []int{2, 1}}},
	}
	found := state(t, "on 3g.20gb@0(1c,1c)")
	found.Parts[0].Busy = true
	f, err := m.Fit(found, want)
	check.That(t, err == nil && f.Keeps == 1 && len(f.Disturbs) == 1, "alone: %+v, %v", f, err)
	want.Wants = append(want.Wants, Want{
		Profile: "3g",
		Start:   Anywhere,
		Compute: []int{1, 1},
	})
	found = state(t, "on 3g.20gb@0(1c,1c) 3g.20gb@4(1c,1c)")
	for busy := range 2 {
		found.Parts[busy].Busy, found.Parts[1-busy].Busy = true, false
		f, err := m.Fit(found, want)
		check.That(t, err == nil && f.Keeps == 2 && len(f.Disturbs) == 0 && len(f.Target.Parts[busy].Compute) == 2 && f.Target.Parts[busy].Compute[0] == 1,
			"%d in use: %+v, %v", busy, f, err)
	}
}
