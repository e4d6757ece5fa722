// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A toybox is the machine of these tests: toys in a map, and a disk for the journal.
type toybox struct {
	*simhost.Node
	toys   map[string]converge.State
	broken string   // this toy cannot be made
	why    error    // why, if a test says it
	made   []string // what Make and MakeAll were called for, in their order
}

// newToybox is a machine on which an operator has left some toys.
func newToybox(t testing.TB, toys map[string]converge.State) *toybox {
	t.Helper()
	node := must.Get(simhost.New([]byte("-- etc/hostname --\ntoybox\n")))(t)
	return &toybox{Node: node, toys: maps.Clone(toys)}
}

// String lists the toys and their states.
func (b *toybox) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(b.toys)) {
		all = append(all, fmt.Sprintf("%s=%s", name, b.toys[name]))
	}
	return strings.Join(all, " ")
}

// set gives a toy a state; "" removes it.
func (b *toybox) set(name string, state converge.State) error {
	switch {
	case b.Off():
		return simhost.ErrPower
	case name == b.broken && b.why != nil:
		return b.why
	case name == b.broken:
		return errors.New("it is broken")
	case state == "":
		delete(b.toys, name)
	default:
		b.toys[name] = state
	}
	return nil
}

// A block is the plainest kind: a value in the map.
type block struct {
	box  *toybox
	name string
}

func (k block) Ref() converge.Ref { return converge.Ref{Kind: "block", Name: k.name} }

func (k block) Look(context.Context, host.View) (converge.State, error) {
	if k.box.Off() {
		return "", simhost.ErrPower
	}
	return k.box.toys[k.name], nil
}

func (k block) Make(_ context.Context, _ host.Host, state converge.State) error {
	k.box.made = append(k.box.made, k.name)
	return k.box.set(k.name, state)
}

// A car is a Batch: all cars are made at once.
type car struct{ block }

func (k car) Ref() converge.Ref { return converge.Ref{Kind: "car", Name: k.name} }

func (k car) MakeAll(_ context.Context, _ host.Host, changes []converge.Change) error {
	var names []string
	for _, c := range changes {
		names = append(names, c.Name)
		if err := k.box.set(c.Name, c.After); err != nil {
			return err
		}
	}

	k.box.made = append(k.box.made, strings.Join(names, "+"))
	return nil
}

// A train is a Chooser: the train "steam" brings a wagon, which goes once another train changes and
// the spec still asks for steam's section.
type train struct{ car }

func (k train) Ref() converge.Ref { return converge.Ref{Kind: "train", Name: k.name} }

const whilePulled = "while pulled"

func (k train) Resolve(_ context.Context, _ host.View, pending []converge.Change) ([]converge.Change, error) {
	isDue := func(c converge.Change) bool {
		return c.After != whilePulled && c.Before != c.After
	}
	all := slices.Clone(pending)
	for i, c := range pending {
		switch {
		case c.After == whilePulled && slices.ContainsFunc(pending, isDue):
			all[i].After = ""
		case c.After == whilePulled:
			all[i].After = c.Before
		case c.Name == "steam" && isDue(c):
			wagon := train{car{block{k.box, "wagon"}}}
			all = append(all, converge.Change{
				Ref:        wagon.Ref(),
				After:      "blue",
				Dependency: true,
			})
		}
	}

	return all, nil
}

func (train) Lacks(context.Context, host.View, []converge.Change) ([]converge.Change, error) {
	return nil, nil
}

func (k train) Chosen(_, last converge.Change) (w converge.Want, ok bool) {
	to := func(converge.State) (converge.State, error) { return whilePulled, nil }
	wagon := train{car{block{k.box, last.Name}}}
	return converge.Want{
		Thing:   wagon,
		To:      to,
		AsFound: true,
		Stays:   true,
	}, true
}

// A chain is a Merger: its state is a list of beads, to which others add theirs. The robot reads
// it.
type chain struct{ block }

func (k chain) Ref() converge.Ref { return converge.Ref{Kind: "chain", Name: k.name} }

func (k chain) Make(ctx context.Context, h host.Host, state converge.State) error {
	if err := k.block.Make(ctx, h, state); err != nil {
		return err
	}
	return k.box.set("robot", "outdated")
}

func (k chain) TakeOut(
	_ host.View, found, before, after converge.State,
) (rest converge.State, left []string, err error) {
	isMine := func(bead string) bool {
		return slices.Contains(beads(after), bead) && !slices.Contains(beads(before), bead)
	}
	others := slices.DeleteFunc(beads(found), isMine)
	return converge.State(strings.Join(others, ",")), nil, nil
}

func beads(state converge.State) []string {
	if state == "" {
		return nil
	}
	return strings.Split(string(state), ",")
}

// A robot is a Follower: it has to read a chain again that has changed.
type robot struct{ block }

func (k robot) Ref() converge.Ref { return converge.Ref{Kind: "robot", Name: k.name} }

func (k robot) Make(ctx context.Context, h host.Host, state converge.State) error {
	if !k.box.Off() && k.box.toys["castle"] != "" {
		k.box.toys["castle"] = "flat"
	}
	return k.block.Make(ctx, h, state)
}

func (k robot) Affected(found converge.State, by converge.Change) converge.State {
	if by.Kind == "chain" {
		return "outdated"
	}
	return found
}

func (k robot) Current(converge.State) converge.State { return "current" }

// A castle is Perishable: a robot that reads its chain again tramples on it, and leaves it flat.
type castle struct{ block }

func (k castle) Ref() converge.Ref { return converge.Ref{Kind: "castle", Name: k.name} }

func (castle) Outlasts(state converge.State, made converge.Ref) bool {
	return state == "" || made.Kind != "robot"
}

func (castle) TakeOut(
	_ host.View, found, before, after converge.State,
) (rest converge.State, left []string, err error) {
	if found == "flat" || found == after {
		return before, nil, nil
	}
	return found, nil, nil
}

// kind builds a thing again from the journal.
func (b *toybox) kind(ref converge.Ref) (converge.Thing, error) {
	toy := block{b, ref.Name}
	switch ref.Kind {
	case "block":
		return toy, nil
	case "car":
		return car{toy}, nil
	case "train":
		return train{car{toy}}, nil
	case "chain":
		return chain{toy}, nil
	case "robot":
		return robot{toy}, nil
	case "castle":
		return castle{toy}, nil
	}

	return nil, errors.New("no such toy")
}

// want is a toy of a kind in a state.
func (b *toybox) want(kind, name string, state converge.State) converge.Want {
	thing, _ := b.kind(converge.Ref{Kind: kind, Name: name})
	follower, ok := thing.(converge.Follower)
	if ok {
		return converge.Following(follower, "")
	}
	to := func(converge.State) (converge.State, error) { return state, nil }
	return converge.Want{Thing: thing, To: to}
}

// bead wants a bead on a chain, behind those of others.
func (b *toybox) bead(name, bead string) converge.Want {
	w := b.want("chain", name, "")
	w.To = func(found converge.State) (converge.State, error) {
		all := append(beads(found), bead)
		return converge.State(strings.Join(all, ",")), nil
	}

	return w
}

// stage is a stage with some wants.
func stage(name string, wants ...converge.Want) converge.Stage {
	return converge.Stage{
		Name:  name,
		Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return wants, nil },
	}
}

// engine is an engine that makes some stages, whose sections are in the spec.
func (b *toybox) engine(stages ...converge.Stage) *converge.Engine {
	e := &converge.Engine{Stages: stages, ThingOf: b.kind, Version: "test"}
	for _, st := range stages {
		e.Spec.Sections = append(e.Spec.Sections, st.Name)
	}
	return e
}

// apply applies, and ends the test if that fails.
func (b *toybox) apply(t *testing.T, stages ...converge.Stage) converge.Result {
	t.Helper()
	return must.Get(b.engine(stages...).Apply(t.Context(), b))(t)
}

// undo undoes all runs.
func (b *toybox) undo(t *testing.T) converge.Result {
	t.Helper()
	return must.Get(b.engine().Undo(t.Context(), b, "all", nil))(t)
}

// errNoPaint is why a toy cannot be made.
var errNoPaint = errors.New("no paint")

// A careless block says that it was made, and was not.
type careless struct{ block }

func (careless) Make(context.Context, host.Host, converge.State) error { return nil }
