// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A Plan says what an apply would do. It is what `plan -o json` prints, and the text is rendered from it.
type Plan struct {
	Format  int         `json:"format"`
	Host    Host        `json:"host"`
	Stages  []StagePlan `json:"stages"`
	Changes []Change    `json:"changes"`
	Stands  int         `json:"stands"` // wants that stand already
	Later   int         `json:"later"`  // changes that cannot be made yet
	Notes   []string    `json:"notes,omitempty"`
}

// Host names the machine and the spec that a plan is for.
type Host struct {
	Root    string      `json:"root"`
	Summary string      `json:"summary"`
	Spec    string      `json:"spec"` // the spec's digest
	Facts   facts.Facts `json:"facts"`
}

// StagePlan counts one stage's wants.
type StagePlan struct {
	Name    string `json:"name"`
	Stands  int    `json:"stands"`
	Changes int    `json:"changes"` // those that are later or cannot be made included
}

// PlanFormat is the version of the plan's JSON.
const PlanFormat = 1

// Cannot returns the changes that cannot be made.
func (p Plan) Cannot() []Change {
	return slices.DeleteFunc(slices.Clone(p.Changes), func(c Change) bool { return c.Cannot == "" })
}

// Now counts the changes an apply would make at once.
func (p Plan) Now() int { return len(p.Changes) - p.Later }

// Facts finds out what the machine is. What a run cannot change is looked up once.
func (e *Engine) Facts(ctx context.Context, v host.View) (facts.Facts, error) {
	var needs facts.Needs
	all := e.Stages
	if slices.ContainsFunc(all, func(st Stage) bool { return st.Whole }) {
		all = append(e.Before[:len(e.Before):len(e.Before)], all...)
	}
	for _, st := range all {
		if st.Needs != nil {
			needs = needs.And(st.Needs(e.Spec))
		}
	}
	return e.cache.Gather(ctx, v, needs)
}

// GPUs looks at the machine's PCI bus, and at nothing else.
func (e *Engine) GPUs(v host.View) ([]facts.PCI, error) { return e.cache.GPUs(v) }

// Plan says what Apply would do, and touches nothing: a View cannot.
func (e *Engine) Plan(ctx context.Context, v host.View) (Plan, error) {
	j, err := ReadJournal(v)
	if err != nil {
		return Plan{}, err
	}
	return e.plan(ctx, v, j)
}

func (e *Engine) plan(ctx context.Context, v host.View, j Journal) (Plan, error) {
	f, err := e.Facts(ctx, v)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Format: PlanFormat, Host: Host{Root: v.Root(), Summary: f.String(), Spec: e.Spec.Digest(), Facts: f}, Changes: []Change{}}
	mine := standing(j.Runs())
	var asked open
	for _, st := range e.Stages {
		steps, err := e.look(ctx, v, st, f, mine)
		if err == nil && st.Whole {
			steps, err = e.wholly(ctx, v, st, f, mine, steps, asked)
		}
		if err != nil {
			return Plan{}, err
		}
		asked.note(st.Name, steps)
		if st.Notes != nil {
			p.Notes = append(p.Notes, st.Notes(v, e.Spec, f)...)
		}
		s := StagePlan{Name: st.Name}
		for _, step := range steps {
			switch {
			case step.stands():
				s.Stands++
				continue
			case step.Later != "":
				p.Later++
			}
			s.Changes++
			p.Changes = append(p.Changes, step.show(v))
		}
		p.Stands += s.Stands
		p.Stages = append(p.Stages, s)
	}
	return p, ctx.Err()
}

// A step is a want that has been looked at.
type step struct {
	Change
	want     Want
	mine     []link
	base     State // what the wish was made from: as found, without what we made of it earlier
	resolved bool  // a Resolver has been asked about it
	stuck    bool  // and had no answer
}

func (s step) stands() bool { return s.Before == s.After && s.Later == "" && s.Cannot == "" }

// wants returns what a stage wants, and what we made for it earlier that its section no longer asks for.
// A section that is gone from the spec lets go: what was made for it stays.
func (e *Engine) wants(st Stage, f facts.Facts, mine []ours) ([]step, error) {
	wants, err := st.Wants(e.Spec, f)
	if err != nil {
		c := Change{Stage: st.Name, Kind: "check", Name: st.Name}
		if Passes(err) { // a cloud that does not answer yet
			return []step{{Change: c, want: Want{Thing: unknown{st.Name, err}}}}, nil
		}
		c.fail(err)
		return []step{{Change: c}}, nil
	}
	var unwanted, wanted []step
	if slices.ContainsFunc(wants, func(w Want) bool { return w.Releases }) {
		mine = nil
	}
	for _, o := range slices.Backward(mine) {
		asked := slices.ContainsFunc(wants, func(w Want) bool { return keyOf(w) == o.key() })
		if o.Stage != st.Name || asked || !e.Spec.Has(o.section()) || o.Keeps != "" || o.Drawn {
			continue
		}
		t, err := e.ThingOf(o.Kind, o.Name)
		if err != nil {
			return nil, err
		}
		c := o.Change
		c.Why = "no longer asked for"
		same := func(found State) (State, error) { return found, nil }
		unwanted = append(unwanted, step{Change: c, mine: o.links, want: Want{Thing: t, To: same}})
		settlers, err := e.settlers(o.Change)
		if err != nil {
			return nil, err
		}
		for _, t := range settlers {
			if !slices.ContainsFunc(wants, func(w Want) bool { return keyOf(w) == keyOf(t) }) {
				wants = append(wants, Want{Thing: t, To: func(found State) (State, error) { return t.Settled(found), nil }})
			}
		}
	}
	for _, w := range wants {
		s := step{want: w, Change: Change{Stage: st.Name, Section: w.Section, Kind: w.Kind(), Name: w.Name(), Why: w.Why, Breaks: w.Breaks, Clients: w.Clients, Keeps: w.Keeps, Leaves: w.Leaves}}
		if i := slices.IndexFunc(mine, func(o ours) bool { return o.key() == keyOf(w) }); i >= 0 {
			s.mine = mine[i].links
		}
		wanted = append(wanted, s)
	}
	steps := gather(unwanted, wanted)
	slices.SortStableFunc(steps, func(a, b step) int { return settles(a.want.Thing) - settles(b.want.Thing) })
	all := append(steps[:len(steps):len(steps)], e.settledBy(st, f)...)
	for i := range steps {
		steps[i].unsettles(all)
	}
	return steps, nil
}

// gather puts the steps in the order of their making: first what is no longer asked for, then what is. The steps of a Resolver come
// where its last wanted step is, with all steps of its kind, so that they are made together: packages that are no longer asked for
// are removed in the transaction that installs those that replace them.
func gather(unwanted, wanted []step) (steps []step) {
	last := map[string]int{}
	for i, s := range wanted {
		if _, ok := s.want.Thing.(Resolver); ok {
			last[s.Kind] = i
		}
	}
	batched := map[string][]step{}
	for _, s := range unwanted {
		if _, ok := last[s.Kind]; ok {
			batched[s.Kind] = append(batched[s.Kind], s)
		} else {
			steps = append(steps, s)
		}
	}
	for i, s := range wanted {
		at, ok := last[s.Kind]
		switch {
		case !ok:
			steps = append(steps, s)
		case at == i:
			of := func(o step) bool { return o.Kind != s.Kind }
			steps = slices.Concat(steps, slices.DeleteFunc(slices.Clone(wanted), of), batched[s.Kind])
		}
	}
	return steps
}

// settledBy returns what settles in the stages that prove this one. A stage that cannot say yet what it wants settles
// nothing that stands.
func (e *Engine) settledBy(st Stage, f facts.Facts) (list []step) {
	for _, later := range e.Stages {
		if later.Proves != st.Name {
			continue
		}
		wants, err := later.Wants(e.Spec, f)
		if err != nil {
			continue
		}
		for _, w := range wants {
			if settles(w.Thing) == 1 {
				list = append(list, step{want: w, Change: Change{Kind: w.Kind(), Name: w.Name()}})
			}
		}
	}
	return list
}

// unsettles notes which of the stage's things must settle after this one.
func (s *step) unsettles(all []step) {
	if s.Settles = settles(s.want.Thing) == 1; s.Settles {
		return
	}
	s.Unsettles = nil
	for _, o := range all {
		if t, ok := o.want.Thing.(Settler); ok && t.Unsettled("", s.Change) != "" {
			s.Unsettles = append(s.Unsettles, o.Kind+" "+o.Name)
		}
	}
}

func (c Change) section() string {
	if c.Section != "" {
		return c.Section
	}
	return c.Stage
}

func settles(t Thing) int {
	if _, ok := t.(Settler); ok {
		return 1
	}
	return 0
}

// look plans one stage: all its things are looked at at once, then those that settle see what will change before them.
func (e *Engine) look(ctx context.Context, v host.View, st Stage, f facts.Facts, mine []ours) ([]step, error) {
	steps, err := e.wants(st, f, mine)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	for i := range steps {
		if steps[i].Cannot == "" {
			wg.Go(func() { e.lookAt(ctx, v, &steps[i]) })
		}
	}
	wg.Wait()
	if steps, err = e.resolve(ctx, v, steps); err != nil {
		return nil, err
	}
	var pending []Change
	for i := range steps {
		s := &steps[i]
		t, ok := s.want.Thing.(Settler)
		if !ok {
			if !s.stands() && s.Cannot == "" {
				pending = append(pending, s.Change)
			}
			continue
		}
		s.foresee(t, pending)
		if err := s.breaks(ctx, v, t); err != nil {
			s.fail(err)
		}
	}
	return slices.DeleteFunc(steps, func(s step) bool { return s.Later == "nothing" }), nil
}

// lookAt looks at one step's thing, and has the change judged if there is a judge.
func (e *Engine) lookAt(ctx context.Context, v host.View, s *step) {
	s.look(ctx, v)
	if err := s.breaks(ctx, v, s.want.Thing); err != nil {
		s.fail(err)
	}
	p, ok := s.want.Thing.(Prover)
	if !ok || s.stands() || s.Cannot != "" || s.Later != "" {
		return
	}
	type change struct {
		key
		base, after State
	}
	judged, _ := e.proven.LoadOrStore(change{s.key(), s.base, s.After}, sync.OnceValue(func() error {
		return p.Prove(ctx, v, s.base, s.After)
	}))
	if err := judged.(func() error)(); err != nil {
		s.fail(err)
	}
}

// breaks has a Breaker say what the change interrupts.
func (c *Change) breaks(ctx context.Context, v host.View, t Thing) (err error) {
	b, ok := t.(Breaker)
	if !ok || c.Later != "" || c.Cannot != "" {
		return nil
	}
	c.Breaks, c.Clients = nil, nil
	if c.Before != c.After {
		c.Breaks, c.Clients, err = b.Breaks(ctx, v, c.Before, c.After)
	}
	return err
}

// look fills in how the thing stands and how it shall stand.
func (s *step) look(ctx context.Context, v host.View) {
	later := host.Later{}
	s.Before, s.After, s.Later, s.Waits = "", "", "", ""
	found, err := s.want.Look(ctx, v)
	if err != nil && !errors.As(err, &later) && !Passes(err) {
		err = fmt.Errorf("cannot look at %s: %w", s, err)
	} else if err == nil {
		s.Before = found
		s.After, err = s.to(v, found)
	}
	switch {
	case errors.As(err, &later):
		s.Before, s.After, s.Later = "", "", later.Until
	case Passes(err):
		s.Before, s.After = "", ""
		s.await(err)
	case err != nil:
		s.fail(err)
	}
}

// to says how a found state shall stand. What we made is counted out first, so that a changed spec ends as on a
// fresh machine; unless somebody changed the thing around what we made, and what we want is still what we made.
func (s *step) to(v host.View, found State) (State, error) {
	s.base = found
	if len(s.mine) == 0 || s.want.AsFound {
		return s.want.To(found)
	}
	last := s.mine[len(s.mine)-1]
	base, err := takeOut(v, s.want.Thing, found, s.mine)
	if err != nil {
		base = found // ours and theirs cannot be told apart: take it as theirs
	}
	if !last.ours(found) && load(v, s.want.Thing, last.Before) == nil {
		then, err1 := s.want.To(last.Before)
		now, err2 := s.want.To(found)
		if err1 == nil && err2 == nil && then == last.After && now == found {
			return found, nil
		}
	}
	if err := load(v, s.want.Thing, base); err != nil {
		return s.want.To(found) // the blobs are gone: only undo is lost with them
	}
	s.base = base
	return s.want.To(base)
}

// foresee makes a settler's line say what the pending changes will do to it. What cannot be looked at yet counts
// only if they would unsettle it: a daemon that does not run will start with the files as they are.
func (s *step) foresee(t Settler, pending []Change) {
	if s.Cannot != "" {
		return
	}
	st := s.Before
	for _, c := range pending {
		st = t.Unsettled(st, c)
	}
	if st == s.Before {
		if s.Later != "" {
			s.Later = "nothing"
		}
		return
	}
	s.Before, s.After = st, t.Settled(st)
	if s.want.To == nil {
		return
	}
	if _, err := s.want.To(st); err != nil {
		s.fail(err)
	}
}

func (c *Change) fail(err error) {
	c.Cannot = err.Error()
	if t := (*Trouble)(nil); errors.As(err, &t) {
		c.Because, c.Try = t.Because, t.Try
	}
}

// show adds the diff.
func (s step) show(v host.View) Change {
	c := s.Change
	st, ok := s.want.Thing.(Stored)
	if !ok || c.Later != "" || c.Cannot != "" {
		return c
	}
	before, err1 := st.Bytes(v, c.Before)
	after, err2 := st.Bytes(v, c.After)
	if err1 == nil && err2 == nil {
		c.Diff = Diff(before, after)
	}
	return c
}
