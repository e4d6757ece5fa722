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

// A Taker takes others along when it is made, back and forth: a kernel module that is loaded anew has forgotten how its GPUs
// were partitioned. What it takes stands again after an undo, and after a stage is put back, whoever had made it; forward that is
// for the stages behind it, which go by the spec.
type Taker interface {
	Thing
	// Takes returns the kind of what it takes along, and the names of those that would be lost now. An error says that nobody
	// can tell: *host.NoDriver, where there is something to ask.
	Takes(context.Context, host.View) (kind string, names []string, err error)
}

// taking is what a run knows of what its changes take along.
type taking struct {
	asked map[string]bool // "KIND NAME" of Takers
	by    []Taker
	kinds []string
	taken []made // Before and After are how it stood
}

// take journals how that stands which the changes will take along, or what settles after them: before the first of them, since
// later nobody may be there to ask. A driver's library is replaced before its module is.
func (r *run) take(ctx context.Context, due []Change) error {
	for _, c := range due {
		for _, id := range append(slices.Clone(c.Unsettles), c.Kind+" "+c.Name) {
			if r.asked[id] {
				continue
			}
			r.asked[id] = true
			kind, name, _ := strings.Cut(id, " ")
			t, err := r.ThingOf(kind, name)
			if by, ok := t.(Taker); ok && err == nil {
				if err := r.takes(ctx, by, c.Stage); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r *run) takes(ctx context.Context, by Taker, stage string) error {
	kind, names, err := by.Takes(ctx, r.h)
	r.by, r.kinds = append(r.by, by), append(r.kinds, kind)
	if err != nil {
		return nil // to mend a driver that does not answer must not fail for that
	}
	mine := standing(r.j.Runs())
	for _, name := range names {
		t, err := r.ThingOf(kind, name)
		if err != nil {
			return err
		}
		found, err := t.Look(ctx, r.h)
		c := Change{Stage: stage, Kind: kind, Name: name, Before: found, After: found, Taken: true}
		if err != nil || r.has(c) {
			continue
		}
		if i := slices.IndexFunc(mine, func(o ours) bool { return o.key() == c.key() }); i >= 0 {
			c.Stage = mine[i].Stage
		}
		if err := r.journal(t, c); err != nil && !r.turning {
			return err
		}
		r.taken = append(r.taken, made{Change: c, thing: t})
	}
	return nil
}

func (r *run) has(c Change) bool {
	return slices.ContainsFunc(r.taken, func(m made) bool { return m.key() == c.key() })
}

// retake fills in what a run that was cut short had taken along.
func (r *run) retake(cut Run) {
	for _, c := range cut.Makes {
		if t, err := r.ThingOf(c.Kind, c.Name); c.Taken && err == nil && !r.has(c) {
			r.taken, r.kinds = append(r.taken, made{Change: c, thing: t}), append(r.kinds, c.Kind)
		}
	}
}

// gone lists what was taken along by some changes, with how it shall stand now: as it stood, or where one of the changes was to
// it, as that has it.
func (r *run) gone(done []made, as func(Change) State) (list []made) {
	if !slices.ContainsFunc(done, func(m made) bool { _, ok := m.thing.(Taker); return ok }) {
		return nil
	}
	for _, m := range done {
		if !m.Settles && slices.Contains(r.kinds, m.Kind) {
			m.After = as(m.Change)
			list = with(list, m)
		}
	}
	for _, m := range r.taken {
		list = with(list, m)
	}
	return list
}

// with adds what is not in the list.
func with(list []made, m made) []made {
	if slices.ContainsFunc(list, func(o made) bool { return o.key() == m.key() }) {
		return list
	}
	return append(list, m)
}

// remake makes what was taken along stand again. It comes when all else is done, and what cannot be made fails nothing of that:
// the error says how it stood, and what to do. What only a new process can look at is left to one, unless the run has failed.
func (r *run) remake(ctx context.Context, list []made) error {
	lost := map[key]error{}
	var due []made
	for _, m := range list {
		now, err := m.thing.Look(ctx, r.h)
		none := (*host.NoDriver)(nil)
		switch {
		case errors.As(err, &none) && none.Again && !r.turning:
			m.Later = host.NewProcess
			r.Later = append(r.Later, m.Change)
		case none != nil && !none.Again && r.nobodyLeft(ctx):
		case err != nil:
			lost[m.key()] = err
		case now != m.After:
			m.Before, m.Taken = now, true
			due = append(due, m)
		}
	}
	for rest := due; len(rest) > 0; {
		n := together(rest)
		failed := makeAll(ctx, r.h, rest[:n])
		for _, m := range rest[:n] {
			err := failed
			if failed != nil && n > 1 { // one of them may have kept the others from it
				err = m.thing.Make(ctx, r.h, m.After)
			}
			if now, lerr := m.thing.Look(ctx, r.h); err != nil || lerr != nil || now != m.After {
				lost[m.key()] = errors.Join(err, lerr)
				continue
			}
			r.Again = append(r.Again, m.Change)
			r.event(Event{Stage: m.Stage, What: Again, Change: &m.Change})
		}
		rest = rest[n:]
	}
	return r.lost(list, lost)
}

// nobodyLeft says that those who take along have nothing left that could be taken: a driver that is gone has no partitions.
func (r *run) nobodyLeft(ctx context.Context) bool {
	for _, by := range r.by {
		if _, names, err := by.Takes(ctx, r.h); err != nil || len(names) > 0 {
			return false
		}
	}
	return len(r.by) > 0
}

// lost tells what was taken along and does not stand again; nil if all does.
func (r *run) lost(list []made, why map[key]error) error {
	var t *Trouble
	mine := standing(r.j.Runs())
	for _, m := range list {
		err, is := why[m.key()]
		if !is {
			continue
		}
		text := fmt.Sprintf("%s stood %q", m, m.After)
		if err != nil {
			text += fmt.Sprintf(", and cannot be made so again: %v", err)
		}
		r.Lost = append(r.Lost, m.Change)
		r.event(Event{Stage: m.Stage, What: Lost, Change: &m.Change, Text: text})
		if t == nil {
			t = &Trouble{What: fmt.Sprintf("cannot make %s stand as before", m), Err: err}
			r.at = m.Stage
		}
		t.Because = append(t.Because, text)
		if inner := (*Trouble)(nil); errors.As(err, &inner) {
			t.Because = append(t.Because, inner.Because...)
			t.Try = append(t.Try, inner.Try...)
		}
		try := "make it by hand as it stood: it was not made by gpuadm"
		if o := slices.IndexFunc(mine, func(o ours) bool { return o.key() == m.key() && !o.taken }); o >= 0 {
			try = "gpuadm apply " + mine[o].Stage + ", which makes what node.toml says of it"
		}
		if !slices.Contains(t.Try, try) {
			t.Try = append(t.Try, try)
		}
	}
	if t == nil {
		return nil
	}
	return t
}

// stood fills in how a thing stands, and how it stood before it was taken along; as somebody else has made it since, where that is so.
// What cannot be looked at shall stand as at first.
func (m *made) stood(ctx context.Context, v host.View, links []link) {
	found, err := m.thing.Look(ctx, v)
	if m.Before, m.After = found, links[0].Before; err != nil {
		return
	}
	m.After = found
	for _, l := range slices.Backward(links) {
		if before, _, err := takeOut(v, m.thing, m.After, []link{l}); err == nil { // else it was somebody else's meanwhile
			m.After = before
		}
	}
}

// lostOnTheWay says whether an undo that was cut short had come to what takes the thing along.
func lostOnTheWay(runs []Run, o ours) bool {
	return slices.ContainsFunc(runs, func(r Run) bool {
		return len(r.Undoes) > 0 && slices.ContainsFunc(r.Makes, func(c Change) bool { return c.Taken && c.key() == o.key() })
	})
}
