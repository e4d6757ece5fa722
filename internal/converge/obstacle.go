// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"errors"
	"fmt"
	"strings"
)

// unseen is why a thing could not be looked at. Nobody is said to have changed what nobody has seen.
type unseen struct{ err error }

func (u unseen) Error() string {
	if w := (Wait{}); errors.As(u.err, &w) && u.err.Error() == w.Error() {
		return w.For // "not yet" is said of what is about to come
	}
	return u.err.Error()
}

func (u unseen) Unwrap() error { return u.err }

// lost is why a thing cannot be put back whose bytes of before, kept for that, are gone.
type lost struct{ error }

func (l lost) Unwrap() error { return l.error }

// obstacles are the things that an undo cannot put back, and why. It touches nothing then, unless it is told to leave them.
type obstacles struct {
	changed []error // each names its thing
	lost    []error
	unseen  []unseen
	of      [][]made // what could not be looked at for that reason
	leave   []string
}

func (o *obstacles) note(m made, why error) {
	o.leave = append(o.leave, "--leave "+typed(m.Name))
	u, ok := why.(unseen)
	if errors.As(why, new(lost)) {
		o.lost = append(o.lost, why)
		return
	} else if !ok {
		o.changed = append(o.changed, why)
		return
	}
	for i := range o.unseen {
		if o.unseen[i].Error() == u.Error() { // an API server that is down is one reason for dozens of labels
			o.of[i] = append(o.of[i], m)
			return
		}
	}
	o.unseen, o.of = append(o.unseen, u), append(o.of, []made{m})
}

// trouble says what is in the way: what somebody else has changed first, for there waiting alone does not help. undo is the
// command line that was refused.
func (o *obstacles) trouble(undo string) error {
	if len(o.leave) == 0 {
		return nil
	}
	var t Trouble
	var all []string
	for _, err := range append(o.changed[:len(o.changed):len(o.changed)], o.lost...) {
		all = append(all, err.Error())
	}
	waits := len(all) == 0
	for i, u := range o.unseen {
		all = append(all, fmt.Sprintf("cannot look at %s: %v", names(o.of[i]), u))
		waits = waits && Passes(u)
		if t.Err == nil || !Passes(u) {
			t.Err = u.err
		}
		if inner := (*Trouble)(nil); errors.As(u, &inner) {
			t.Because, t.Try = append(t.Because, inner.Because...), append(t.Try, inner.Try...)
		}
	}
	t.What = all[0]
	t.Because = append(append(all[1:], t.Because...), "nothing was touched")
	rest := "undo the rest: " + undo + " " + strings.Join(o.leave, " ")
	switch {
	case len(o.changed) > 0:
		t.Err = nil
		t.Try = append([]string{"put it back as we left it, or " + rest}, t.Try...)
	case len(o.lost) > 0:
		t.Err = o.lost[0]
		t.Try = append([]string{"bring " + Home + " back from a backup, or " + rest}, t.Try...)
	case waits && len(t.Try) == 0:
		t.Try = []string{"wait, and run the same command again", "or " + rest}
	default:
		t.Try = append(t.Try, "or "+rest)
	}
	return &t
}
