// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Reason is why a change is not made now: it cannot be made, it waits, or its thing could not be
// looked at. The zero Reason: it can be made.
type Reason struct {
	Cannot   string    `json:"cannot,omitempty"`   // why it cannot be made
	Waits    string    `json:"waits,omitempty"`    // for what event outside gpuadm; Deferred is shorter
	Deferred string    `json:"deferred,omitempty"` // until when: "first boot", "once the driver answers"
	Unknown  string    `json:"unknown,omitempty"`  // why the thing's state could not be read
	When     host.When `json:"when,omitempty"`     // the same as a code
	Because  []string  `json:"because,omitempty"`  // more about Cannot, Waits or Unknown
	Try      []string  `json:"try,omitempty"`      // what to do about it
	Code     error     `json:"-"`                  // its trouble.Code; nil: it has none
	Keys     []string  `json:"-"`                  // the keys of the spec whose values are at fault

	Passes bool   `json:"-"` // of Unknown: waiting helps, and an apply makes the other changes
	Silent string `json:"-"` // of Deferred: the reader that does not answer, and why
}

// now says that nothing keeps the change from being made.
func (r Reason) now() bool {
	return r.Cannot == "" && r.Deferred == "" && r.Unknown == ""
}

// refused says that the change keeps an apply from touching anything.
func (r Reason) refused() bool { return r.Cannot != "" || r.Unknown != "" && !r.Passes }

// awaited says that the change comes by a reboot or a new process of this run.
func (r Reason) awaited() bool {
	return r.When == host.AfterReboot || r.When == host.InNewProcess || r.When == host.AtFirstBoot
}

// reasonOf turns the error of To, or of a stage's wants, into a Reason; nil into the zero Reason.
func reasonOf(err error) Reason {
	var later host.Later
	switch {
	case err == nil:
		return Reason{}
	case errors.As(err, &later):
		return Reason{
			Deferred: later.Until,
			When:     later.When,
			Silent:   later.Silent,
		}
	case trouble.IsUnknown(err):
		return unknownBecause(err)
	case trouble.Passes(err):
		return waitsFor(err)
	}

	return cannot(err)
}

// unseenBecause turns the error of a look into a Reason: where the look has not found that the
// thing must wait, its state is unknown.
func unseenBecause(err error) Reason {
	if isConclusion(err) {
		return reasonOf(err)
	}
	return unknownBecause(err)
}

// isConclusion says whether an error is what a thing has found out. Otherwise a reader has failed.
func isConclusion(err error) bool {
	isLater := errors.As(err, new(host.Later))
	isWait := errors.As(err, new(trouble.Wait))
	return isLater || !trouble.IsUnknown(err) && (isWait || trouble.Concludes(err))
}

// unknownBecause is the Reason of a change to a thing whose state could not be read.
func unknownBecause(err error) Reason {
	r := cannot(err)
	r.Unknown = r.Cannot
	r.Cannot = ""
	r.Passes = trouble.Passes(err)
	return r
}

// withoutAnswer is the Reason of a change of which a thing could not say what it interrupts: unknown
// where a reader has failed, and cannot where that is what the thing has concluded.
func withoutAnswer(err error) Reason {
	if isConclusion(err) {
		return cannot(err)
	}
	r := unknownBecause(err)
	r.Passes = false // an apply touches nothing before it knows
	return r
}

// withoutEvent turns a deferral until a silent reader answers into an unknown state: no change of
// the run makes it answer.
func (r Reason) withoutEvent() Reason {
	return Reason{
		Unknown: r.Silent,
		Try:     []string{trouble.Command("doctor") + ", which finds the cause and names the fix"},
		Passes:  true,
	}
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

// cannot is the Reason of a change that cannot be made, even where the error passes by itself.
func cannot(err error) Reason {
	t := troubleOf(err)
	r := Reason{
		Cannot:  err.Error(),
		Because: t.Because,
		Try:     t.Try,
		Keys:    t.Keys,
	}

	var code trouble.Code
	if errors.As(err, &code) {
		r.Code = code
	}
	return r
}

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

// withoutClaim takes the claim that nothing was touched out of what an error says was undone. The
// code that refuses makes that claim, and only the run knows whether it has changed anything.
func withoutClaim(undone []string) []string {
	isClaim := func(line string) bool { return line == trouble.NothingTouched }
	return slices.DeleteFunc(slices.Clone(undone), isClaim)
}
