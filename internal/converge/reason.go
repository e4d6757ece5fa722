// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Reason is why a change is not made now: it cannot be made, or it waits. The zero Reason: it can
// be made.
type Reason struct {
	Cannot   string    `json:"cannot,omitempty"`   // why it cannot be made
	Waits    string    `json:"waits,omitempty"`    // the event outside gpuadm that it waits for; Deferred is shorter
	Deferred string    `json:"deferred,omitempty"` // until when: "first boot", "once the driver answers"
	When     host.When `json:"when,omitempty"`     // the same as a code
	Because  []string  `json:"because,omitempty"`  // more about Cannot
	Try      []string  `json:"try,omitempty"`      // what to do about Cannot, or Waits
	Code     error     `json:"-"`                  // the trouble.Code of Cannot, or Waits; nil: it has none
	Keys     []string  `json:"-"`                  // the keys of the spec whose values are at fault
}

// now says that nothing keeps the change from being made.
func (r Reason) now() bool { return r.Cannot == "" && r.Deferred == "" }

// reasonOf turns the error of a look or of To into a Reason; nil into the zero Reason.
func reasonOf(err error) Reason {
	var later host.Later
	switch {
	case err == nil:
		return Reason{}
	case errors.As(err, &later):
		return Reason{Deferred: later.Until, When: later.When}
	case trouble.Passes(err):
		return waitsFor(err)
	}
	return cannot(err)
}

// waitsFor is the Reason of a change that waits for an event outside gpuadm.
func waitsFor(err error) Reason {
	r := cannot(err)
	r.Waits = r.Cannot
	r.Cannot = ""
	r.Deferred = "once that has happened"

	var wait trouble.Wait
	if r.Try == nil && errors.As(err, &wait) {
		r.Try = wait.Try
	}
	return r
}

// cannot is the Reason of a change that cannot be made, even where the error is one that passes.
func cannot(err error) Reason {
	t := troubleOf(err)
	r := Reason{Cannot: err.Error(), Because: t.Because, Try: t.Try, Keys: t.Keys}

	var code trouble.Code
	if errors.As(err, &code) {
		r.Code = code
	}
	return r
}

// trouble is the reason as an error; nil if an operator has nothing to do.
func (r Reason) trouble() *trouble.Error {
	switch {
	case r.Cannot != "":
		return &trouble.Error{What: r.Cannot, Because: r.Because, Try: r.Try, Err: r.Code}
	case r.Waits != "":
		wait := trouble.Wait{For: r.Waits, Err: r.Code}
		return &trouble.Error{What: r.Waits, Because: r.Because, Try: r.Try, Err: wait}
	}
	return nil
}

// reasons joins the reasons of changes into one error, each reason once: several stages may have
// the same. nil: the changes have no reasons.
func reasons(all []Change) (joined *trouble.Error) {
	for _, c := range all {
		next := c.trouble()
		switch {
		case next == nil:
			continue
		case joined == nil:
			joined = next
			continue
		}

		if next.What != joined.What {
			joined.Because = appendUnique(joined.Because, "also: "+next.What)
		}
		joined.Because = appendUnique(joined.Because, next.Because...)
		joined.Try = appendUnique(joined.Try, next.Try...)
		joined.Err = errors.Join(joined.Err, next.Err)
	}
	return joined
}

// refuse returns an error that names the changes that cannot be made; nil if it gets none.
func refuse(cannot []Change) error {
	t := reasons(cannot)
	if t == nil {
		return nil
	}

	t.Because = append(t.Because, nothingTouched)
	return t
}

// waiting returns an error that names what the remaining changes wait for; nil if each waits for a
// later boot at most.
func waiting(left []Change) error {
	t := reasons(left)
	if t == nil {
		return nil
	}

	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run the same command again: it continues from here"}
	}
	return t
}

// nothingTouched ends a refusal that comes before the first change.
const nothingTouched = "nothing was touched"

// troubleOf returns a new trouble.Error for an error; the caller may add lines to it.
func troubleOf(err error) *trouble.Error {
	t := &trouble.Error{What: err.Error(), Err: err}

	var inner *trouble.Error
	if errors.As(err, &inner) {
		t.Because = slices.Clone(inner.Because)
		t.Undone = slices.Clone(inner.Undone)
		t.Try = slices.Clone(inner.Try)
		t.Keys = inner.Keys
	}
	return t
}
