// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Reason is why a change is not made now: it cannot be, or it waits. The zero Reason: it can be made.
type Reason struct {
	Cannot   string    `json:"cannot,omitempty"`   // why it cannot be made
	Waits    string    `json:"waits,omitempty"`    // what it waits for, which gpuadm does not make; Deferred says it shorter
	Deferred string    `json:"deferred,omitempty"` // until when: "first boot", "once the driver answers"
	When     host.When `json:"when,omitempty"`     // the same for a program
	Because  []string  `json:"because,omitempty"`  // more about Cannot
	Try      []string  `json:"try,omitempty"`      // what to do about Cannot, or Waits
}

// now says that nothing keeps the change from being made.
func (r Reason) now() bool { return r.Cannot == "" && r.Deferred == "" }

// reasonOf is what an error means for the change that met it; nil: nothing.
func reasonOf(err error) Reason {
	later := host.Later{}
	switch {
	case err == nil:
		return Reason{}
	case errors.As(err, &later):
		return Reason{Deferred: later.Until, When: later.When}
	case trouble.Passes(err):
		r := cannot(err)
		r.Waits, r.Cannot, r.Deferred = r.Cannot, "", "once that has happened"
		if w := (trouble.Wait{}); errors.As(err, &w) && r.Try == nil {
			r.Try = w.Try
		}
		return r
	}
	return cannot(err)
}

// cannot is reasonOf where waiting does not help, whatever the error is.
func cannot(err error) Reason {
	t := troubleOf(err)
	return Reason{Cannot: err.Error(), Because: t.Because, Try: t.Try}
}

// trouble is the reason as an error; nil if there is none that a person can do something about.
func (r Reason) trouble() *trouble.Error {
	switch {
	case r.Cannot != "":
		return &trouble.Error{What: r.Cannot, Because: r.Because, Try: r.Try}
	case r.Waits != "":
		return &trouble.Error{What: r.Waits, Because: r.Because, Try: r.Try, Err: trouble.Wait{For: r.Waits}}
	}
	return nil
}

// troubleOf is an error as a trouble.Error of its own, to add to.
func troubleOf(err error) *trouble.Error {
	t := &trouble.Error{What: err.Error(), Err: err}
	if inner := (*trouble.Error)(nil); errors.As(err, &inner) {
		t.Because, t.Undone, t.Try = slices.Clone(inner.Because), slices.Clone(inner.Undone), slices.Clone(inner.Try)
	}
	return t
}
