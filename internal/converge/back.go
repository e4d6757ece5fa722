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

// turnBack puts back what the stage changed in this run, last first, and says so.
func (r *run) turnBack(ctx context.Context, cause error, done []made) error {
	ctx = context.WithoutCancel(ctx) // a run that ran out of time still leaves nothing half done
	r.turning = true
	defer func() { r.turning = false }()
	t := &Trouble{What: cause.Error(), Err: cause}
	if inner := (*Trouble)(nil); errors.As(cause, &inner) {
		t.Because, t.Undone, t.Try = slices.Clone(inner.Because), slices.Clone(inner.Undone), slices.Clone(inner.Try)
	}
	r.event(Event{Stage: r.at, What: Failed, Text: cause.Error()})
	slices.Reverse(done)
	slices.SortStableFunc(done, func(a, b made) int { return settles(a.thing) - settles(b.thing) })
	var back []Change
	for len(done) > 0 {
		n := together(done)
		undone, err := r.putBack(ctx, done[:n])
		done = done[n:]
		back = append(back, undone...)
		if err != nil {
			t.Because = append(t.Because, fmt.Sprintf("and it could not be put back: %v", err))
		}
	}
	for _, c := range back {
		t.Undone = append(t.Undone, c.String())
	}
	r.Made = slices.DeleteFunc(r.Made, func(c Change) bool {
		return slices.ContainsFunc(back, func(b Change) bool { return b.key() == c.key() })
	})
	return t
}

// putBack makes one batch stand as before. Each change's After is where it is now taken to stand. What holds only after a
// reboot counts as put back, and the result says so.
func (r *run) putBack(ctx context.Context, batch []made) ([]Change, error) {
	var due []made
	for _, m := range batch {
		if m.Keeps != "" {
			r.event(Event{Stage: m.Stage, What: Kept, Change: &m.Change, Text: m.Keeps})
			continue
		}
		st, settler := m.thing.(Settler)
		found, err := m.thing.Look(ctx, r.h)
		if later := (host.Later{}); settler && errors.As(err, &later) {
			continue // it does not run, and will start with what it then finds
		} else if err != nil {
			return nil, fmt.Errorf("cannot look at %s: %w", m, unseen{err})
		}
		if m.Before, m.After = m.After, m.Before; settler { // what ran shall run, also if our restart has left it dead
			if m.asleep { // it runs again since: its start has read what it then found
				m.After = found
			}
			m.Before, m.After = found, st.Settled(m.After)
		}
		if found == m.After {
			continue
		}
		m.Why = ""
		// Turning back needs no line of its own: the Before is in the journal, and a full disk must not leave it undone.
		if err := r.journal(m.thing, m.Change); err != nil && !r.turning {
			return nil, err
		}
		due = append(due, m)
	}
	if len(due) == 0 {
		return nil, nil
	}
	ctx = WayBack(ctx, func(text string) { r.event(Event{Stage: due[0].Stage, What: Unkept, Text: text}) })
	err := makeAll(ctx, r.h, due)
	if stays := (Stays{}); errors.As(err, &stays) {
		for _, m := range due {
			m.Cannot = stays.Why
			r.Left = append(r.Left, m.Change)
			r.event(Event{Stage: m.Stage, What: Left, Change: &m.Change, Text: stays.Why})
		}
		return nil, nil
	} else if reboot := (host.Reboot{}); errors.As(err, &reboot) {
		r.Reboot = reboot.Why
		var back []Change
		for _, m := range due {
			back = append(back, m.Change)
			r.event(Event{Stage: m.Stage, What: Undone, Change: &m.Change, Text: reboot.Why})
		}
		return back, nil
	} else if err != nil {
		back, open := r.sort(ctx, due)
		r.remember(ctx, open)
		return back, fmt.Errorf("cannot put back %s: %w", names(due), err)
	}
	var back []Change
	for _, m := range due {
		now, err := m.thing.Look(ctx, r.h)
		if err != nil {
			return back, err
		}
		if now != m.After {
			return back, fmt.Errorf("cannot put back %s: it did not hold: wanted %q, found %q", m, m.After, now)
		}
		back = append(back, m.Change)
		r.event(Event{Stage: m.Stage, What: Undone, Change: &m.Change})
	}
	return back, nil
}

// sort tells what stands as before, whatever the make that failed had to say after it, from what does not.
func (r *run) sort(ctx context.Context, due []made) (back []Change, open []made) {
	for _, m := range due {
		if now, err := m.thing.Look(ctx, r.h); err != nil || now != m.After {
			open = append(open, m)
			continue
		}
		back = append(back, m.Change)
		r.event(Event{Stage: m.Stage, What: Undone, Change: &m.Change})
	}
	return back, open
}

// recall fills in what an earlier process has changed in this run, which a reboot, a crash or a signal cut short: if a stage
// fails now, that is put back too. What somebody else has changed since stays.
func (r *run) recall(ctx context.Context, cut Run) error {
	for _, o := range standing([]Run{cut}) {
		t, err := r.ThingOf(o.Kind, o.Name)
		if err != nil {
			continue // a newer gpuadm's
		}
		c := o.Change
		c.Before = o.links[0].Before
		if found, err := t.Look(ctx, r.h); err == nil { // else it stands as journalled, as far as anybody can tell
			c.After = found
			if c.Before, err = takeOut(r.h, t, found, o.links); err != nil || c.Before == found {
				continue
			}
		}
		settlers, err := r.settlers(c)
		if err != nil {
			return err
		}
		done := append(r.done[c.Stage], made{Change: c, thing: t})
		for _, s := range settlers {
			done = append(done, made{Change: Change{Stage: c.Stage, Kind: s.Kind(), Name: s.Name(), Settles: true}, thing: s})
		}
		r.done[c.Stage] = done
	}
	return nil
}

// remember notes how what was to be put back stands now, so that undo knows of it. It may not even be possible to look, or
// to write that down; then the run stays open, and is told of so.
func (r *run) remember(ctx context.Context, due []made) {
	for _, m := range due {
		m.Before, m.After = m.After, m.Before
		if now, err := m.thing.Look(ctx, r.h); err == nil {
			m.After = now
		}
		if !m.Settles {
			_ = r.journal(m.thing, m.Change)
		}
	}
}

// together counts the changes at the front that are made as one.
func together(all []made) int {
	n := 1
	if _, ok := all[0].thing.(Batch); ok {
		for n < len(all) && all[n].Kind == all[0].Kind {
			n++
		}
	}
	return n
}

// settlers builds again what must settle after a journalled change is put back.
func (e *Engine) settlers(c Change) (list []Settler, err error) {
	for _, id := range c.Unsettles {
		kind, name, _ := strings.Cut(id, " ")
		t, err := e.ThingOf(kind, name)
		if err != nil {
			return nil, err
		}
		if st, ok := t.(Settler); ok {
			list = append(list, st)
		}
	}
	return list, nil
}
