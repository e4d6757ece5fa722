// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Action is a kind of step.
type Action string

const (
	ModeOn          Action = "switch MIG mode on"
	ModeOff         Action = "switch MIG mode off"
	Reset           Action = "reset the GPU"
	DestroyCompute  Action = "destroy compute instance"
	DestroyInstance Action = "destroy"
	CreateInstance  Action = "create"
	CreateCompute   Action = "create compute instance"
)

// Step is one change to one GPU. Instances are named by profile and place, since ids are known only
// once they exist.
type Step struct {
	Do      Action
	Name    string    // of the instance's profile
	Profile int       // its id
	At      host.Span // the instance's place; Size is 0 if the GPU no longer offers the instance to destroy
	Slices  int       // of the compute instance
	Compute int       // id of its profile
	Spot    host.Span // its place; zero if the driver chooses, or if any one of its size may be destroyed
}

// String is the step in words: "destroy 3g.40gb at 4", "create compute instance 1c in 3g.40gb at
// 4".
func (s Step) String() string {
	switch s.Do {
	case DestroyInstance, CreateInstance:
		return fmt.Sprintf("%s %s at %d", s.Do, s.Name, s.At.Start)

	case DestroyCompute, CreateCompute:
		spot := ""
		if s.Spot.Size > 0 {
			spot = fmt.Sprintf(" at %d", s.Spot.Start)
		}
		return fmt.Sprintf("%s %dc%s in %s at %d", s.Do, s.Slices, spot, s.Name, s.At.Start)
	}

	return string(s.Do)
}

// on is the step in words, with the GPU's PCI address: for "cannot …" in an error.
func (s Step) on(gpu string) string {
	switch s.Do {
	case ModeOn, ModeOff:
		return s.String() + " for GPU " + gpu
	case Reset:
		return "reset GPU " + gpu
	}
	return s.String() + " on GPU " + gpu
}

func changesMode(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool {
		return s.Do == ModeOn || s.Do == ModeOff || s.Do == Reset
	})
}

// destroys reports whether the step takes an instance, or a compute instance, from its processes.
func (s Step) destroys() bool { return s.Do == DestroyInstance || s.Do == DestroyCompute }

// geometry is a state, with the ids that steps need.
type geometry struct {
	mode, next Mode
	instances  []instance
}

// instance is a GPU instance, with the ids that steps need.
type instance struct {
	name    string
	profile int
	at      host.Span
	compute []computeInstance // the largest first
	busy    bool
}

// computeInstance is a compute instance, with the ids that steps need.
type computeInstance struct {
	slices  int
	profile int
	spot    host.Span // zero if it does not matter
}

// Steps lists the steps from one state of a GPU to another: first all that destroy, then all that
// create an instance at its place. With from and to exchanged, Steps lists the steps back.
func (m Model) Steps(from, to State) ([]Step, error) {
	if from.Mode == Unknown || to.Mode == Unknown {
		return nil, fmt.Errorf("cannot plan the steps from %q to %q: the GPU's state is not known", from, to)
	}

	now, _ := m.geometry(from)
	target, err := m.geometry(to)
	if err != nil {
		return nil, err
	}
	if target.mode != target.next && !m.Resets() {
		return nil, fmt.Errorf("cannot plan the steps from %q to %q: a change of mode needs no reset on %s", from, to, m.Name)
	}

	return stepsBetween(now, target, m.Resets()), nil
}

// geometry resolves a state by the GPU's profiles. The error names a profile that the GPU does not
// offer: gpuadm can destroy such an instance, and not create it.
func (m Model) geometry(s State) (geometry, error) {
	g := geometry{mode: s.Mode, next: cmp.Or(s.Next, s.Mode)}
	var wrong error
	for _, part := range s.Parts {
		in := instance{
			name:    part.Profile,
			profile: noProfile,
			at:      host.Span{Start: part.Start},
			busy:    part.Busy,
		}
		if id, unnamed := strings.CutPrefix(part.Profile, "?"); unnamed {
			in.profile, _ = strconv.Atoi(id)
		}

		var offers []host.ComputeProfile
		for _, p := range m.Profiles {
			if p.Name != part.Profile {
				continue
			}
			in.profile = p.ID
			offers = p.Compute
			for _, at := range p.Places {
				if at.Start == part.Start {
					in.at = at
				}
			}
		}

		for _, size := range part.Compute {
			c := computeInstance{slices: size, profile: noProfile}
			i := slices.IndexFunc(offers, func(o host.ComputeProfile) bool {
				return o.Slices == size
			})
			if i >= 0 {
				c.profile = offers[i].ID
			} else if wrong == nil {
				wrong = fmt.Errorf("cannot make a compute instance %dc in %s on %s: it has no such profile", size, part.Profile, m.Name)
			}

			in.compute = append(in.compute, c)
		}

		if in.at.Size == 0 && wrong == nil {
			wrong = fmt.Errorf("cannot make %s at %d on %s: it offers no such instance there", part.Profile, part.Start, m.Name)
		}
		g.instances = append(g.instances, in)
	}

	return g, wrong
}

// stepsBetween lists the steps from one geometry to another. It destroys instances in use first: if
// that fails, no idle one is lost.
func stepsBetween(from, to geometry, resets bool) []Step {
	var destroyed, made []Step
	keep := from.mode == On && to.mode == On
	for _, in := range busyFirst(from.instances) {
		i := slices.IndexFunc(to.instances, in.same)
		if i < 0 || !keep {
			destroyed = append(destroyed, in.computeSteps(DestroyCompute, in.compute)...)
			destroyed = append(destroyed, in.step(DestroyInstance))
			continue
		}

		target := to.instances[i]
		destroy, create := in.computeChanges(target.compute)
		destroyed = append(destroyed, in.computeSteps(DestroyCompute, destroy)...)
		made = append(made, target.computeSteps(CreateCompute, create)...)
	}

	for _, in := range to.instances {
		if !keep || !slices.ContainsFunc(from.instances, in.same) {
			made = append(made, in.step(CreateInstance))
			made = append(made, in.computeSteps(CreateCompute, in.compute)...)
		}
	}

	return slices.Concat(destroyed, modeSteps(from, to, resets), made)
}

// busyFirst is the instances in use, then the idle ones.
func busyFirst(all []instance) []instance {
	var busy, idle []instance
	for _, in := range all {
		if in.busy {
			busy = append(busy, in)
		} else {
			idle = append(idle, in)
		}
	}

	return append(busy, idle...)
}

// modeSteps lists the steps that change the mode, and the mode after the next reset.
func modeSteps(from, to geometry, resets bool) []Step {
	var steps []Step
	next := from.next
	set := func(m Mode) {
		next = m
		if m == On {
			steps = append(steps, Step{Do: ModeOn})
		} else {
			steps = append(steps, Step{Do: ModeOff})
		}
	}

	if from.mode != to.mode {
		if next != to.mode || !resets {
			set(to.mode)
		}
		if resets {
			steps = append(steps, Step{Do: Reset})
		}
	}

	if next != to.next {
		set(to.next)
	}

	return steps
}

func (in instance) same(other instance) bool {
	return in.profile == other.profile && in.at.Start == other.at.Start
}

func (in instance) step(do Action) Step {
	return Step{Do: do, Name: in.name, Profile: in.profile, At: in.at}
}

// computeSteps lists one step for each of these compute instances.
func (in instance) computeSteps(do Action, list []computeInstance) []Step {
	if do == CreateCompute {
		list = inOrder(list, Part{Profile: in.name}.slices())
	}

	var steps []Step
	for _, c := range list {
		s := in.step(do)
		s.Slices = c.slices
		s.Compute = c.profile
		s.Spot = c.spot
		steps = append(steps, s)
	}

	return steps
}

func hasSpot(c computeInstance) bool { return c.spot.Size > 0 }

// inOrder is the order in which to create compute instances if the driver chooses their places: the
// largest first, unless they then block each other. On A100 a 2c starts at the first free even
// slice, a 3c at 0 or 4: so into seven slices fit 2c, 2c, 3c, but not 3c, 2c, 2c.
func inOrder(list []computeInstance, slots int) []computeInstance {
	if slots > 8 || slices.ContainsFunc(list, hasSpot) {
		return list
	}

	var try func(left, order []computeInstance, used uint64) []computeInstance
	try = func(left, order []computeInstance, used uint64) []computeInstance {
		if len(left) == 0 {
			return order
		}
		for i, c := range left {
			if i > 0 && c.slices == left[i-1].slices {
				continue
			}
			at := firstFree(c.slices, slots, used)
			if at < 0 {
				continue
			}
			rest := slices.Delete(slices.Clone(left), i, i+1)
			longer := append(slices.Clone(order), c)
			if found := try(rest, longer, used|mask(host.Span{Start: at, Size: c.slices})); found != nil {
				return found
			}
		}

		return nil
	}

	if order := try(list, []computeInstance{}, 0); order != nil {
		return order
	}

	return list
}

// firstFree is where the driver places a compute instance: at the first free multiple of its size,
// rounded up to a power of two; -1 if there is none.
func firstFree(size, slots int, used uint64) int {
	step := 1
	for step < size {
		step *= 2
	}

	for at := 0; at+size <= slots; at += step {
		if used&mask(host.Span{Start: at, Size: size}) == 0 {
			return at
		}
	}

	return -1
}

// computeChanges lists the compute instances to destroy and to make in an instance that stays.
func (in instance) computeChanges(want []computeInstance) (destroy, create []computeInstance) {
	if slices.ContainsFunc(want, hasSpot) {
		left := slices.Clone(want)
		for _, c := range in.compute {
			if i := slices.Index(left, c); i >= 0 {
				left = slices.Delete(left, i, i+1)
			} else {
				destroy = append(destroy, c)
			}
		}

		return destroy, left
	}

	wanted := sizes(want)
	goes, makes := recompute(sizes(in.compute), wanted)
	for _, i := range goes {
		destroy = append(destroy, in.compute[i])
	}
	for _, size := range makes {
		create = append(create, want[slices.Index(wanted, size)])
	}

	return destroy, create
}

func sizes(list []computeInstance) []int {
	var all []int
	for _, c := range list {
		all = append(all, c.slices)
	}

	return all
}
