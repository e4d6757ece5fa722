// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// An UndoPlan says what an undo would put back.
type UndoPlan struct {
	Format  int      `json:"format"`
	Runs    []string `json:"runs"`    // which runs are put back, oldest first
	Changes []Change `json:"changes"` // in order: last begun first, what is made as one together, those that settle
	Kept    []Change `json:"kept,omitempty"`
	Left    []Change `json:"left,omitempty"`

	due []made
}

// PlanUndo says what Undo would do, and touches nothing.
func (e *Engine) PlanUndo(ctx context.Context, v host.View, to string, leave []string) (UndoPlan, error) {
	j, err := ReadJournal(v)
	if err != nil {
		return UndoPlan{}, err
	}
	p, err := e.planUndo(ctx, v, j, to, leave)
	for _, m := range p.due {
		s := step{Change: m.Change, want: Want{Thing: m.thing}}
		if st, ok := m.thing.(Settler); ok {
			if m.asleep {
				continue
			}
			s.foresee(st, p.Changes)
		}
		if !s.stands() {
			p.Changes = append(p.Changes, s.show(v))
		}
	}
	return p, err
}

// Undo puts back what runs have changed: the last one (to = ""), all since and with one (to = its id), or "all".
// Per thing, the oldest Before of the range is made where the newest After stands. Where someone else has changed the
// thing since, our part alone is taken out if that is provable; otherwise nothing at all is touched, unless leave
// names the thing. Afterwards a hold stands: unattended applies do nothing until an apply by hand.
func (e *Engine) Undo(ctx context.Context, h host.Host, to string, leave []string) (Result, error) {
	r, unlock, err := e.start(h)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	ctx = r.listen(ctx)
	r.heal()
	r.collect(ctx)
	j := r.j
	p, err := e.planUndo(ctx, h, j, to, leave)
	if err != nil {
		return Result{}, err
	}
	r.Left = p.Left
	if len(p.Runs) == 0 {
		r.event(Event{What: Nothing})
		return r.Result, nil
	}
	var changes []Change
	for _, m := range p.due {
		changes = append(changes, m.Change)
	}
	if err := e.consent(ctx, h, changes); err != nil {
		return Result{}, err
	}
	last, goesOn := j.unfinished()
	goesOn = goesOn && slices.Equal(last.Undoes, p.Runs)
	if goesOn {
		r.id = last.ID
	}
	if err := r.begin(goesOn, p.Runs); err != nil {
		return Result{}, err
	}
	if goesOn { // what is put back already will not be made again
		if err := r.sweep(last); err != nil {
			return r.end(err)
		}
	}
	for _, c := range p.Kept {
		r.event(Event{Stage: c.Stage, What: Kept, Change: &c, Text: c.Keeps})
	}
	for _, c := range p.Left {
		r.event(Event{Stage: c.Stage, What: Left, Change: &c, Text: c.Cannot})
	}
	if err := r.undo(ctx, p.due); err != nil {
		return r.end(err)
	}
	result, err := r.end(nil)
	if err != nil {
		return result, err
	}
	r.collect(ctx)
	return result, nil
}

// undo makes the changes of a plan to undo. If one fails, those made so far are made to stand as found: half an undo helps
// nobody, and what stood before it ran. Where only waiting helps it is not turned round, which would need the same answer: the
// run stays open, and the next undo goes on.
func (r *run) undo(ctx context.Context, due []made) error {
	var done []made
	for len(due) > 0 {
		if r.stopped() {
			return ErrStopped
		}
		n := together(due)
		r.at = due[0].Stage
		done = append(done, slices.Clone(due[:n])...)
		for i := range due[:n] { // putBack turns changes round
			due[i].Before, due[i].After = due[i].After, due[i].Before
		}
		back, err := r.putBack(ctx, due[:n])
		r.Made = append(r.Made, back...)
		if Passes(err) {
			return r.pauses(err)
		} else if err != nil {
			return r.turnBack(ctx, err, done)
		}
		due = due[n:]
	}
	return nil
}

// pauses says that an undo waits for somebody, and how far it has come.
func (r *run) pauses(err error) error {
	t := &Trouble{What: err.Error(), Err: err}
	if inner := (*Trouble)(nil); errors.As(err, &inner) {
		t.Because, t.Try = slices.Clone(inner.Because), slices.Clone(inner.Try)
	}
	t.Because = append(t.Because, fmt.Sprintf("%d changes are put back so far, and stay so", len(r.Made)))
	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run gpuadm undo again: it goes on from here"}
	}
	return t
}

// scope returns the ids of the runs to put back, oldest first.
func (j Journal) scope(to string) ([]string, error) {
	if last, open := j.unfinished(); open && len(last.Undoes) > 0 && to == "" {
		return last.Undoes, nil
	}
	ids := []string{}
	for _, run := range slices.Backward(j.Runs()) {
		if run.Undone || len(run.Undoes) > 0 || !run.changed() {
			continue
		}
		ids = append([]string{run.ID}, ids...)
		if to == "" || to == run.ID {
			return ids, nil
		}
	}
	if to != "" && to != "all" {
		return ids, noRun(to, ids)
	}
	return ids, nil
}

// noRun says that there is no such run to undo, and which there are, oldest first. Status lists them too, but asks for a spec.
func noRun(to string, ids []string) error {
	t := &Trouble{What: fmt.Sprintf("cannot undo run %q: no such run, or it is undone already", to), Try: []string{"--to takes a run or all; without it the last run is undone"}}
	const most = 6
	switch n := len(ids); {
	case n == 0:
		t.Because, t.Try = []string{"no run is left to undo here"}, nil
	case n == 1:
		t.Because = []string{"to undo there is the run " + ids[0]}
	default:
		text := "to undo there are the runs " + strings.Join(ids[max(0, n-most):], ", ")
		if n > most {
			text += fmt.Sprintf(", and %d before", n-most)
		}
		t.Because = []string{text}
	}
	return t
}

func (e *Engine) planUndo(ctx context.Context, v host.View, j Journal, to string, leave []string) (p UndoPlan, err error) {
	p.Format, p.Changes = PlanFormat, []Change{}
	if p.Runs, err = j.scope(to); err != nil || len(p.Runs) == 0 {
		return p, err
	}
	var runs []Run
	for _, run := range j.Runs() { // an undo of these runs that was cut short is counted with them
		if slices.Contains(p.Runs, run.ID) || len(run.Undoes) > 0 && run.Result != "ok" && subset(run.Undoes, p.Runs) {
			runs = append(runs, run)
		}
	}
	goesOn := slices.ContainsFunc(runs, func(r Run) bool { return len(r.Undoes) > 0 })
	var inTheWay obstacles
	var settle []made
	for _, o := range slices.Backward(standing(runs)) {
		t, err := e.ThingOf(o.Kind, o.Name)
		if err != nil {
			return p, err
		}
		m := made{Change: o.Change, thing: t}
		m.Why, m.Later = "", ""
		switch foreign, err := m.back(ctx, v, o.links); {
		case err != nil:
			return p, err
		case m.Keeps != "":
			p.Kept = append(p.Kept, m.Change)
		case goesOn && errors.As(foreign, new(*host.NoDriver)):
			// The undo that was cut short was about to load another driver, which ends what the loaded one holds.
		case foreign != nil && (slices.Contains(leave, m.Name) || slices.Contains(leave, m.String())):
			m.Cannot = foreign.Error()
			p.Left = append(p.Left, m.Change)
		case foreign != nil:
			inTheWay.note(m, foreign)
		default:
			if err := m.breaks(ctx, v, m.thing); err != nil {
				return p, err
			}
			if m.Before != m.After {
				p.due = append(p.due, m)
				p.leaves(m)
			}
			if settle, err = e.unsettled(settle, o.Change); err != nil {
				return p, err
			}
		}
	}
	if err := inTheWay.trouble(undoing(v, to, p.Left)); err != nil {
		return p, err
	}
	p.due = gathered(p.due)
	for _, m := range settle {
		if _, err := m.back(ctx, v, nil); err != nil {
			return p, err
		}
		m.Breaks = stopsClients(runs, m, p.due)
		if err := m.foreseeBreaks(ctx, v, p.due); err != nil {
			return p, err
		}
		p.due = append(p.due, m)
	}
	return p, nil
}

// unsettled adds what must settle after a change is put back, each once.
func (e *Engine) unsettled(settle []made, by Change) ([]made, error) {
	settlers, err := e.settlers(by)
	for _, st := range settlers {
		c := Change{Stage: by.Stage, Kind: st.Kind(), Name: st.Name(), Settles: true}
		if !slices.ContainsFunc(settle, func(m made) bool { return m.key() == c.key() }) {
			settle = append(settle, made{Change: c, thing: st})
		}
	}
	return settle, err
}

// gathered has what a stage makes in one transaction go in one, in the place of what was touched first of it: a package that a
// later run has drawn along does not go alone, while others of them need it.
func gathered(due []made) (list []made) {
	for i, m := range due {
		mate := func(o made) bool { return o.Kind == m.Kind && o.Stage == m.Stage }
		if _, ok := m.thing.(Batch); !ok {
			list = append(list, m)
		} else if !slices.ContainsFunc(due[i+1:], mate) { // the last of them
			list = append(list, slices.DeleteFunc(slices.Clone(due[:i+1]), func(o made) bool { return !mate(o) })...)
		}
	}
	return list
}

// stopsClients says that a thing which settles anew after these changes takes the GPUs from who uses them, as it did when the
// runs made it: whoever undoes has to agree again.
func stopsClients(runs []Run, m made, due []made) []string {
	const what = "stop-clients"
	t, _ := m.thing.(Settler)
	for _, run := range runs {
		for _, c := range run.Makes {
			if c.key() != m.key() || !slices.Contains(c.Breaks, what) {
				continue
			}
			for _, d := range due {
				if !d.Settles && t.Unsettled(m.Before, d.Change) != m.Before {
					return []string{what}
				}
			}
			return nil
		}
	}
	return nil
}

// foreseeBreaks has what settles say what that interrupts once the changes before it are put back.
func (m *made) foreseeBreaks(ctx context.Context, v host.View, due []made) error {
	t, ok := m.thing.(Settler)
	if !ok || m.asleep {
		return nil
	}
	c := m.Change
	for _, d := range due {
		c.Before = t.Unsettled(c.Before, d.Change)
	}
	err := c.breaks(ctx, v, m.thing)
	m.Breaks, m.Clients = c.Breaks, c.Clients
	return err
}

// undoing is the command line of an undo that leaves some things.
func undoing(v host.View, to string, left []Change) string {
	words := "gpuadm undo"
	if to != "" {
		words += " --to " + typed(to)
	}
	if v.Root() != "/" {
		words += " --root " + typed(v.Root())
	}
	for _, c := range left {
		words += " --leave " + typed(c.Name)
	}
	return words
}

// typed is a thing's name as it is typed into a shell: "label example.com/rack" is one word.
func typed(name string) string {
	if strings.ContainsAny(name, " *?") {
		return "'" + name + "'"
	}
	return name
}

// leaves notes what stays elsewhere when the thing goes, unless that is noted already.
func (p *UndoPlan) leaves(m made) {
	c := m.Change
	c.Keeps = c.Leaves
	if c.Keeps != "" && c.After == "" && !slices.ContainsFunc(p.Kept, func(k Change) bool { return k.Keeps == c.Keeps }) {
		p.Kept = append(p.Kept, c)
	}
}

// back fills in how the thing stands and how it stood before us. foreign says why our part cannot be told from what
// someone else did since.
func (m *made) back(ctx context.Context, v host.View, links []link) (foreign, err error) {
	found, err := m.thing.Look(ctx, v)
	st, settler := m.thing.(Settler)
	switch later := (host.Later{}); {
	case settler && errors.As(err, &later):
		m.Before, m.After, m.asleep = "", "", true // it does not run, and will start with what it then finds
		return nil, nil
	case err != nil && settler:
		return nil, fmt.Errorf("cannot look at %s: %w", m, err)
	case err != nil:
		return unseen{err}, nil
	case settler:
		m.Before, m.After = found, st.Settled(found)
		return nil, nil
	}
	m.Before = found
	if m.After, foreign = takeOut(v, m.thing, found, links); foreign == nil && m.After != found {
		if err := load(v, m.thing, m.After); err != nil {
			return lost{fmt.Errorf("cannot put back %s: what it was before is lost: %w", m, err)}, nil
		}
	}
	return foreign, nil
}

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}
