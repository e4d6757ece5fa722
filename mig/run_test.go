// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// turns are pairs of states, and layouts that lead from the one to the other.
var turns = []struct{ gpu, from, to string }{
	{"A100-40", "on 2g.10gb@0 1g.5gb@2 1g.5gb@3 3g.20gb@4", "on 2g.10gb@0 2g.10gb@2 3g.20gb@4"},
	{"A100-40", "on 1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6", "on 7g.40gb@0"},
	{"A100-40", "on 7g.40gb@0(3c,2c,1c,1c)", "on 7g.40gb@0(4c,3c)"},
	{"A100-40", "on 7g.40gb@0(1c)", "on 7g.40gb@0(3c,2c,2c)"},
	{"A100-40", "on 7g.40gb@0(2c,1c)", "on 7g.40gb@0(2c,1c,1c,1c)"},
	{"A100-40", "on 3g.20gb@0() 3g.20gb@4(1c)", "on 3g.20gb@0 3g.20gb@4(1c,1c,1c)"},
	{"A100-40", "off", "on 4g.20gb@0 3g.20gb@4(2c,1c)"},
	{"A100-40", "off, on after a reset", "on 1g.5gb@0"},
	{"A100-40", "on 4g.20gb@0 3g.20gb@4(2c,1c)", "off"},
	{"A100-40", "on", "off, on after a reset"},
	{"A100-40", "on, off after a reset", "on"},
	{"A100-40", "on 1g.5gb@0", "on, off after a reset"},
	{"H100-80", "off", "on 1g.10gb+me@0 1g.20gb@2 3g.40gb@4"},
	{"H100-80", "on 1g.10gb+me@0 1g.20gb@2 3g.40gb@4", "off"},
	{"RTX PRO 6000", "on 1g.24gb-me@0 1g.24gb+gfx@3 2g.48gb@6", "on 4g.96gb+gfx@0(2c,1c,1c)"},
	{"A30", "on 1g.6gb@0 1g.6gb+me@1 2g.12gb@2", "on 4g.24gb@0(2c)"},
	{"B200", "on 1g.23gb@6", "on"},
	{"H200", "off", "off"},
}

// TestSteps: the steps lead to the target, and those the other way round lead back.
func TestSteps(t *testing.T) {
	for _, c := range turns {
		m := model(t, c.gpu)
		x := newSim(m, state(t, c.from))
		for _, leg := range [][2]string{{c.from, c.to}, {c.to, c.from}, {c.from, c.from}} {
			steps := must.Get(m.Steps(state(t, leg[0]), state(t, leg[1])))(t)
			if leg[0] == leg[1] && len(steps) > 0 {
				t.Errorf("%s: %q is converged and has steps %v", c.gpu, leg[0], steps)
			}
			err := (Runner{Device: x}).Run(context.Background(), Plan{
				GPU:   x.gpu.Address,
				Steps: steps,
			})
			if err != nil {
				t.Fatalf("%s: %q → %q: %v\n%v", c.gpu, leg[0], leg[1], err, steps)
			}
			if got := StateOf(x.gpu).String(); got != leg[1] {
				t.Errorf("%s: %q → %q ends in %q", c.gpu, leg[0], leg[1], got)
			}
		}
	}
}

// A scenario is a change of one GPU.
type scenario struct {
	m        Model
	from, to State
	spots    []int // where the compute instances are found; nil: where the driver lays them
}

func (c scenario) sim() *sim { return newSim(c.m, c.from, c.spots...) }

// scenarios are the turns and many random ones.
func scenarios(t testing.TB) (list []scenario) {
	t.Helper()
	for _, c := range turns {
		list = append(list, scenario{
			m:    model(t, c.gpu),
			from: state(t, c.from),
			to:   state(t, c.to),
		})
	}

	a100 := model(t, "A100-40")
	list = append(list,
		scenario{a100, state(t, "on 7g.40gb@0(1c,1c)"), state(t, "on 7g.40gb@0(4c)"), []int{3, 5}},
		scenario{a100, state(t, "on 4g.20gb@0(1c) 3g.20gb@4(1c)"), state(t, "on 4g.20gb@0(1c,1c,1c) 3g.20gb@4(2c,1c)"), []int{1, 2}})
	rnd := rand.New(rand.NewPCG(5, 8))
	for _, name := range []string{"A100-40", "A30", "RTX PRO 6000", "H100-80"} {
		m := model(t, name)
		for range 40 {
			from, to := random(rnd, m), random(rnd, m)
			for i := range from.Parts { // some were left half-made
				if rnd.IntN(6) == 0 {
					from.Parts[i].Compute = nil
				}
			}

			list = append(list, scenario{m: m, from: from, to: to})
		}
	}

	return list
}

// random lays instances at random until nothing more fits or luck ends it, with compute instances
// at random.
func random(rnd *rand.Rand, m Model) State {
	s := empty()
	var used uint64
	count := map[int]int{}
	var all []item
	for rnd.IntN(12) > 0 {
		p := m.Profiles[rnd.IntN(len(m.Profiles))]
		at := p.Places[rnd.IntN(len(p.Places))]
		if used&mask(at) != 0 || count[p.ID] == p.Max || media(append(all, item{profile: p})) != nil {
			continue // the driver would not have made it
		}
		used |= mask(at)
		all = append(all, item{profile: p})
		count[p.ID]++
		part := Part{Profile: p.Name, Start: at.Start, Compute: []int{p.Slices}}
		if rnd.IntN(3) == 0 {
			part.Compute = nil
			for left := p.Slices; left > 0 && rnd.IntN(8) > 0; left-- {
				part.Compute = append(part.Compute, 1)
			}
			if part.Compute == nil {
				part.Compute = []int{1}
			}
		}

		s.Parts = append(s.Parts, part)
	}

	s.sort()
	return s
}

// layoutOf asks for what a state has, anywhere.
func layoutOf(s State) Layout {
	l := Layout{Enabled: s.Mode == On}
	for _, p := range s.Parts {
		w := Want{Profile: p.Profile, Start: Anywhere}
		if p.slices() != total(p.Compute) || len(p.Compute) != 1 {
			w.Compute = slices.Clone(p.Compute)
		}
		l.Wants = append(l.Wants, w)
	}

	return l
}

// TestFailure: whichever call fails, before or after it took effect, the GPU gets its former state
// back, ids included.
func TestFailure(t *testing.T) {
	runs := 0
	for _, c := range scenarios(t) {
		steps := must.Get(c.m.Steps(c.from, c.to))(t)
		for n := 1; n <= len(steps); n++ {
			for _, how := range []fault{early, late} {
				runs++
				x := c.sim()
				before := x.shape()
				x.fail = func(call int) fault {
					if call == n {
						return how
					}
					return none
				}

				err := (Runner{Device: x}).Run(context.Background(), Plan{
					GPU:   x.gpu.Address,
					Steps: steps,
				})
				var f *Failure
				if err == nil && how == late && x.log[n-1] == "reset" && StateOf(x.gpu).String() == c.to.String() {
					continue // it had worked, and the runner looks
				}
				must.That(t, errors.As(err, &f) && errors.Is(err, errSim), "%s → %s: call %d failed and Run says %v", c.from, c.to, n, err)
				check.That(t, restored(f) && x.shape() == before, "%s: %s → %s, call %d: is %s, was %s: %v", c.m.Name, c.from, c.to, n, x.shape(), before, err)
			}
		}
	}

	t.Logf("%d failures", runs)
}

// TestFailureLeavesOthers: where one GPU fails, no step is made on a GPU whose turn has not come.
func TestFailureLeavesOthers(t *testing.T) {
	m := model(t, "A100-40")
	from, to := state(t, "on 3g.20gb@0 3g.20gb@4"), state(t, "on 3g.20gb@0 2g.10gb@4")
	steps := must.Get(m.Steps(from, to))(t)
	first, second := newSim(m, from), newSim(m, from)
	second.gpu.Address = "0000:18:00.0"
	first.fail = func(call int) fault {
		if call == len(steps) {
			return early
		}
		return none
	}

	ofFirst := Plan{GPU: first.gpu.Address, Steps: steps}
	ofSecond := Plan{GPU: second.gpu.Address, Steps: steps}
	err := (Runner{Device: duo{first, second}}).Run(t.Context(), ofFirst, ofSecond)
	var f *Failure
	must.That(t, errors.As(err, &f) && restored(f), "%v", err)
	check.List(t, second.log, nil, "steps on the second GPU:")
}

// losing is two GPUs of which the second falls off the bus at one of its steps.
type losing struct {
	duo
	lost *bool
}

func (l losing) Driver(ctx context.Context) (host.Driver, error) {
	d, err := l.duo.Driver(ctx)
	if *l.lost {
		d.GPUs[1] = host.GPU{
			Address: l.duo[1].gpu.Address,
			Index:   1,
			Lost:    "it has fallen off the bus",
		}
	}
	return d, err
}

// TestLostGPULeavesOthers: where a GPU falls off the bus during a change, the others get their former
// state back, and the error does not give the lost one a state.
func TestLostGPULeavesOthers(t *testing.T) {
	for _, c := range []struct{ gpu, from, to string }{
		{"H100-80", "on 3g.40gb@0 1g.10gb@4", "off"},
		{"A100-40", "on 3g.20gb@0 1g.5gb@4", "off"},
		{"A100-40", "off", "on 3g.20gb@0"},
	} {
		m := model(t, c.gpu)
		steps := must.Get(m.Steps(state(t, c.from), state(t, c.to)))(t)
		for n := 1; n <= len(steps); n++ {
			first, second := newSim(m, state(t, c.from)), newSim(m, state(t, c.from))
			second.gpu.Address = "0000:18:00.0"
			lost := false
			second.fail = func(call int) fault {
				lost = lost || call == n
				if lost {
					return cut
				}
				return none
			}

			before := first.shape()
			err := (Runner{Device: losing{duo{first, second}, &lost}}).Run(t.Context(),
				Plan{GPU: first.gpu.Address, Steps: steps},
				Plan{GPU: second.gpu.Address, Steps: steps})
			var f *Failure
			must.That(t, errors.As(err, &f), "%s: %s → %s, step %d: %v", c.gpu, c.from, c.to, n, err)
			check.Equal(t, first.shape(), before, "%s: %s → %s, step %d: the first GPU is", c.gpu, c.from, c.to, n)

			said := words(explain(err, nil))
			check.Says(t, said, "GPU 0000:17:00.0 is in its former state: "+c.from+"\n",
				`GPU 0000:18:00.0 was "`+c.from+`", and gpuadm cannot read its state now`+"\n",
				"cannot partition GPU 0000:18:00.0: it has fallen off the bus\n")
		}
	}
}

// restored says whether all GPUs are in their former state.
func restored(f *Failure) bool {
	return !slices.ContainsFunc(append(f.Others, f.RolledBack), func(t RolledBack) bool {
		return !t.Restored()
	})
}

// TestPowerCut: wherever the power goes, planning again ends in the same target.
func TestPowerCut(t *testing.T) {
	runs := 0
	for _, c := range scenarios(t) {
		if c.to.Next != c.to.Mode {
			continue // no layout asks for a pending mode
		}
		want := layoutOf(c.to)
		fit := must.Get(c.m.Fit(c.from, want))(t)
		steps := must.Get(c.m.Steps(c.from, fit.Target))(t)
		for n := 1; n <= len(steps)+1; n++ {
			runs++
			x := c.sim()
			x.fail = func(call int) fault {
				if call >= n {
					return cut
				}
				return none
			}

			_ = (Runner{Device: x}).Run(context.Background(), Plan{
				GPU:   x.gpu.Address,
				Steps: steps,
			})
			x.fail = nil
			again := must.Get(c.m.Fit(StateOf(x.gpu), want))(t)
			if again.Target.String() != fit.Target.String() {
				t.Errorf("%s: %s → %s, cut at %d (%s): the target is %s", c.m.Name, c.from, fit.Target, n, StateOf(x.gpu), again.Target)
			}
			more := must.Get(c.m.Steps(StateOf(x.gpu), again.Target))(t)
			must.OK(t, (Runner{Device: x}).Run(context.Background(), Plan{
				GPU:   x.gpu.Address,
				Steps: more,
			}))
			check.Equal(t, StateOf(x.gpu).String(), again.Target.String(), "%s: %s → %s, cut at %d: ends in", c.m.Name, c.from, again.Target, n)
		}
	}

	t.Logf("%d power cuts", runs)
}

// TestBackFails: what cannot be brought back is said.
func TestBackFails(t *testing.T) {
	m := model(t, "A100-40")
	from, to := state(t, "on 3g.20gb@0 3g.20gb@4"), state(t, "on 3g.20gb@0 2g.10gb@4")
	steps, err := m.Steps(from, to)
	must.OK(t, err)
	x := newSim(m, from)
	x.fail = func(call int) fault {
		if call >= 3 {
			return early
		}
		return none
	}

	err = explain((Runner{Device: x}).Run(context.Background(), Plan{
		GPU:   x.gpu.Address,
		Steps: steps,
	}), nil)
	want := []string{
		"cannot create 2g.10gb at 4 on GPU 0000:17:00.0: ERROR_UNKNOWN",
		`GPU 0000:17:00.0 was "on 3g.20gb@0 3g.20gb@4" and is "on 3g.20gb@0" now`,
		"cannot create 3g.20gb at 4: ERROR_UNKNOWN",
		"cannot create compute instance 3c at 0 in 3g.20gb at 4: there is no 3g.20gb at 4",
	}
	said := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &said) && slices.Equal(append([]string{said.What}, said.Because...), want), "got  %v\nwant %q", err, want)
}

// TestNotPaused: where the services that hold a GPU cannot be paused, the error names the change that
// they prevent, and a step back that was not made does not count as undone.
func TestNotPaused(t *testing.T) {
	m := model(t, "H100-80")
	from := state(t, "on 1g.10gb@0")
	steps := must.Get(m.Steps(from, state(t, "off")))(t)
	const what = "cannot switch MIG mode off for GPU 0000:17:00.0: "
	for _, c := range []struct {
		pauses      int // how often the services can be paused
		what, state string
	}{
		{0, what + "cannot stop nvidia-persistenced.service", "on 1g.10gb@0"},
		{1, what + "ERROR_UNKNOWN", "off"}, // the mode was switched, and is to be switched back
	} {
		x := newSim(m, from)
		x.fail = func(call int) fault {
			if call == len(steps) {
				return late
			}
			return none
		}
		run := Runner{Device: x}
		run.Idle = func(_ context.Context, _ []string, change func() error) error {
			if c.pauses == 0 {
				return errors.New("cannot stop nvidia-persistenced.service")
			}
			c.pauses--
			return change()
		}

		err := explain(run.Run(t.Context(), Plan{GPU: x.gpu.Address, Steps: steps}), nil)
		var said *trouble.Error
		must.That(t, errors.As(err, &said), "%v", err)
		check.Equal(t, said.What, c.what, "%s: error", c.state)
		check.List(t, said.Undone, nil, "%s: undone", c.state)
		check.Equal(t, StateOf(x.gpu).String(), c.state, "state")
	}
}

// TestCancelled: a context that ends stops between two steps, and the GPU is brought back all the
// same.
func TestCancelled(t *testing.T) {
	m := model(t, "A100-40")
	from, to := state(t, "on 3g.20gb@0 3g.20gb@4"), state(t, "on 7g.40gb@0")
	steps := must.Get(m.Steps(from, to))(t)
	x := newSim(m, from)
	ctx, stop := context.WithCancel(context.Background())
	x.fail = func(call int) fault {
		if call == 3 {
			stop()
		}
		return none
	}

	var f *Failure
	err := (Runner{Device: x}).Run(ctx, Plan{GPU: x.gpu.Address, Steps: steps})
	check.That(t, errors.As(err, &f) && restored(f) && errors.Is(err, context.Canceled), "got %v", err)
	check.Equal(t, StateOf(x.gpu).String(), from.String(), "state")
}

// TestExactCompute: of compute instances of one size the one that is named goes.
func TestExactCompute(t *testing.T) {
	m := model(t, "A100-40")
	x := newSim(m, state(t, "on 7g.40gb@0(1c,1c)"), 3, 5)
	whole := m.Profiles[m.byID(0)]
	step := Step{
		Do:     DestroyCompute,
		Name:   whole.Name,
		At:     whole.Places[0],
		Slices: 1,
		Spot:   host.Span{Start: 3, Size: 1},
	}
	must.OK(t, (Runner{Device: x}).Run(context.Background(), Plan{
		GPU:   x.gpu.Address,
		Steps: []Step{step},
	}))
	check.Equal(t, x.shape(), "true/true 0:0@0[0@5]", "%s leaves", step)
}

// TestPendingMode: a mode that only waits for its reset is not asked for again.
func TestPendingMode(t *testing.T) {
	m := model(t, "A100-40")
	for want, c := range map[string][2]string{
		"[reset the GPU]":                     {"off, on after a reset", "on"},
		"[switch MIG mode off]":               {"off, on after a reset", "off"},
		"[switch MIG mode on]":                {"on, off after a reset", "on"},
		"[switch MIG mode on reset the GPU]":  {"off", "on"},
		"[switch MIG mode off reset the GPU]": {"on", "off"},
	} {
		if steps, err := m.Steps(state(t, c[0]), state(t, c[1])); err != nil || fmt.Sprint(steps) != want {
			t.Errorf("%q → %q: %v, %v; want %s", c[0], c[1], steps, err, want)
		}
	}

	_, err := model(t, "H100-80").Steps(state(t, "off"), state(t, "off, on after a reset"))
	check.That(t, err != nil, "an H100 waits for a reset")
}

// TestOwnIDs: compute profiles are named by the driver's own ids, also where it says them late.
func TestOwnIDs(t *testing.T) {
	m := model(t, "A30")
	x := newSim(m, empty())
	x.gpu.Profiles = slices.Clone(x.gpu.Profiles)
	x.gpu.Profiles[1].Compute = []host.ComputeProfile{{
		ID:     7,
		Enum:   7,
		Slices: 1,
		Max:    1,
	}}
	late := &lateProfiles{sim: x}
	steps := must.Get(m.Steps(empty(), state(t, "on 1g.6gb+me@0")))(t)
	must.OK(t, (Runner{Device: late}).Run(context.Background(), Plan{
		GPU:   x.gpu.Address,
		Steps: steps,
	}))
	check.Equal(t, x.gpu.Instances[0].Compute[0].Profile, 7, "made with profile")
}

// lateProfiles says the compute profiles of an instance only once one exists.
type lateProfiles struct{ *sim }

func (l *lateProfiles) Driver(ctx context.Context) (host.Driver, error) {
	d, err := l.sim.Driver(ctx)
	d.GPUs[0].Profiles = slices.Clone(d.GPUs[0].Profiles)
	for i, p := range d.GPUs[0].Profiles {
		if !slices.ContainsFunc(l.gpu.Instances, func(in host.Instance) bool { return in.Profile == p.ID }) {
			d.GPUs[0].Profiles[i].Compute = nil
		}
	}

	return d, err
}

// graphicsMode is a workstation board in display mode graphics, which has no MIG mode.
type graphicsMode struct{ *sim }

func (graphicsMode) SetMIGMode(context.Context, string, bool) error {
	return refused("nvmlDeviceSetMigMode", "NOT_SUPPORTED")
}

// TestWorkstationBoard: where the driver has no MIG mode for a GPU with partitions, the advice is NVIDIA's
// tool for its display mode, and not the same command once more.
func TestWorkstationBoard(t *testing.T) {
	m := model(t, "A100-40")
	from, to := state(t, "off"), state(t, "on 7g.40gb@0")
	x := newSim(m, from)
	plan := Plan{GPU: x.gpu.Address, Steps: must.Get(m.Steps(from, to))(t)}
	err := explain((Runner{Device: graphicsMode{x}}).Run(t.Context(), plan), nil)
	var told *trouble.Error
	must.That(t, errors.As(err, &told), "%v", err)
	check.That(t, len(told.Try) == 1 && strings.Contains(told.Try[0], "DisplayModeSelector --gpumode=compute"), "%v", told.Try)
}
