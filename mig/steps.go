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
	At      host.Span // the instance's place; Size is 0 if the step destroys an instance that the GPU no longer offers
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

// of is the step in words, with the GPU's PCI address: for "cannot …" in an error.
func (s Step) of(gpu string) string {
	switch s.Do {
	case ModeOn, ModeOff:
		return s.String() + " for GPU " + gpu
	case Reset:
		return "reset GPU " + gpu
	}
	return s.String() + " on GPU " + gpu
}

// piece is a GPU instance, with the ids that steps need.
type piece struct {
	name    string
	profile int
	at      host.Span
	compute []bit // the largest first
	busy    bool
}

// bit is a compute instance, with the ids that steps need.
type bit struct {
	slices  int
	profile int
	spot    host.Span // zero if it does not matter
}

type geometry struct {
	mode, next Mode
	pieces     []piece
}

// Steps lists the steps from one state of a GPU to another: first all that destroy, then all that
// create an instance at its place. With from and to exchanged, Steps lists the steps back.
func (m Model) Steps(from, to State) ([]Step, error) {
	if from.Mode == Unknown || to.Mode == Unknown {
		return nil, fmt.Errorf("cannot plan the steps from %q to %q: the GPU's state is not known", from, to)
	}
	a, _ := m.geometry(from)
	b, err := m.geometry(to)
	if err != nil {
		return nil, err
	}
	if b.mode != b.next && !m.Resets() {
		return nil, fmt.Errorf("cannot plan the steps from %q to %q: a change of mode needs no reset on %s", from, to, m.Name)
	}
	return stepsBetween(a, b, m.Resets()), nil
}

// geometry resolves a state by the GPU's profiles. The error names a profile that the GPU does not
// offer: gpuadm can destroy such an instance, and not create it.
func (m Model) geometry(s State) (geometry, error) {
	g := geometry{mode: s.Mode, next: cmp.Or(s.Next, s.Mode)}
	var wrong error
	for _, p := range s.Parts {
		made := piece{name: p.Profile, profile: noProfile, at: host.Span{Start: p.Start}, busy: p.Busy}
		if id, unnamed := strings.CutPrefix(p.Profile, "?"); unnamed {
			made.profile, _ = strconv.Atoi(id)
		}
		var offers []host.ComputeProfile
		for _, q := range m.Profiles {
			if q.Name == p.Profile {
				made.profile, offers = q.ID, q.Compute
				for _, at := range q.Places {
					if at.Start == p.Start {
						made.at = at
					}
				}
			}
		}
		for _, c := range p.Compute {
			b := bit{slices: c, profile: noProfile}
			if i := slices.IndexFunc(offers, func(o host.ComputeProfile) bool { return o.Slices == c }); i >= 0 {
				b.profile = offers[i].ID
			} else if wrong == nil {
				wrong = fmt.Errorf("cannot make a compute instance %dc in %s on %s: it has no such profile", c, p.Profile, m.Name)
			}
			made.compute = append(made.compute, b)
		}
		if made.at.Size == 0 && wrong == nil {
			wrong = fmt.Errorf("cannot make %s at %d on %s: it offers no such instance there", p.Profile, p.Start, m.Name)
		}
		g.pieces = append(g.pieces, made)
	}
	return g, wrong
}

// stepsBetween lists the steps from one geometry to another. It destroys instances in use first: if
// that fails, no idle one is lost.
func stepsBetween(from, to geometry, resets bool) []Step {
	var destroyed, made, modes []Step
	keep := from.mode == On && to.mode == On
	busy := func(p piece) bool { return p.busy }
	idle := func(p piece) bool { return !p.busy }
	for _, p := range slices.Concat(slices.DeleteFunc(slices.Clone(from.pieces), idle), slices.DeleteFunc(slices.Clone(from.pieces), busy)) {
		i := slices.IndexFunc(to.pieces, p.same)
		if i < 0 || !keep {
			destroyed = append(append(destroyed, p.bits(DestroyCompute, p.compute)...), p.step(DestroyInstance))
			continue
		}
		destroy, create := p.turn(to.pieces[i].compute)
		destroyed = append(destroyed, p.bits(DestroyCompute, destroy)...)
		made = append(made, to.pieces[i].bits(CreateCompute, create)...)
	}
	for _, p := range to.pieces {
		if !keep || !slices.ContainsFunc(from.pieces, p.same) {
			made = append(append(made, p.step(CreateInstance)), p.bits(CreateCompute, p.compute)...)
		}
	}
	now, next := from.mode, from.next
	set := func(m Mode) {
		if next = m; m == On {
			modes = append(modes, Step{Do: ModeOn})
		} else {
			modes = append(modes, Step{Do: ModeOff})
		}
	}
	if now != to.mode {
		if next != to.mode || !resets {
			set(to.mode)
		}
		if resets {
			modes = append(modes, Step{Do: Reset})
		}
	}
	if next != to.next {
		set(to.next)
	}
	return slices.Concat(destroyed, modes, made)
}

func (p piece) same(q piece) bool { return p.profile == q.profile && p.at.Start == q.at.Start }

func (p piece) step(do Action) Step {
	return Step{Do: do, Name: p.name, Profile: p.profile, At: p.at}
}

func (p piece) bits(do Action, list []bit) []Step {
	var steps []Step
	if do == CreateCompute {
		list = inOrder(list, Part{Profile: p.name}.slices())
	}
	for _, b := range list {
		s := p.step(do)
		s.Slices, s.Compute, s.Spot = b.slices, b.profile, b.spot
		steps = append(steps, s)
	}
	return steps
}

// inOrder is the order in which to create compute instances if the driver chooses their places: the
// largest first, unless they then block each other. On A100 a 2c starts at the first free even
// slice, a 3c at 0 or 4: so into seven slices fit 2c, 2c, 3c, but not 3c, 2c, 2c.
func inOrder(list []bit, slots int) []bit {
	if slices.ContainsFunc(list, func(b bit) bool { return b.spot.Size > 0 }) {
		return list
	}
	var try func(left, order []bit, used uint64) []bit
	try = func(left, order []bit, used uint64) []bit {
		if len(left) == 0 {
			return order
		}
		for i, b := range left {
			if i > 0 && b.slices == left[i-1].slices {
				continue
			}
			at := firstFree(b.slices, slots, used)
			if at < 0 {
				continue
			}
			rest := slices.Delete(slices.Clone(left), i, i+1)
			if found := try(rest, append(slices.Clone(order), b), used|mask(host.Span{Start: at, Size: b.slices})); found != nil {
				return found
			}
		}
		return nil
	}
	if slots <= 8 {
		if order := try(list, []bit{}, 0); order != nil {
			return order
		}
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

// turn lists the compute instances to destroy and to make in an instance that stays.
func (p piece) turn(want []bit) (destroy, create []bit) {
	if slices.ContainsFunc(want, func(b bit) bool { return b.spot.Size > 0 }) {
		left := slices.Clone(want)
		for _, b := range p.compute {
			if i := slices.Index(left, b); i >= 0 {
				left = slices.Delete(left, i, i+1)
			} else {
				destroy = append(destroy, b)
			}
		}
		return destroy, left
	}
	var found, sizes []int
	for _, b := range p.compute {
		found = append(found, b.slices)
	}
	for _, b := range want {
		sizes = append(sizes, b.slices)
	}
	goes, makes := recompute(found, sizes)
	for _, i := range goes {
		destroy = append(destroy, p.compute[i])
	}
	for _, n := range makes {
		create = append(create, want[slices.Index(sizes, n)])
	}
	return destroy, create
}
