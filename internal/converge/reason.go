// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Reason is why a change is not made now: it cannot be made, it waits, or its thing could not be
// looked at. The zero Reason: it can be made.
type Reason struct {
	Cannot   string    `json:"cannot,omitempty"`   // why it cannot be made
	Waits    string    `json:"waits,omitempty"`    // the event outside gpuadm that it waits for; Deferred is shorter
	Deferred string    `json:"deferred,omitempty"` // until when: "first boot", "once the driver answers"
	Unknown  string    `json:"unknown,omitempty"`  // why the thing's state could not be read
	When     host.When `json:"when,omitempty"`     // the same as a code
	Because  []string  `json:"because,omitempty"`  // more about Cannot, Waits or Unknown
	Try      []string  `json:"try,omitempty"`      // what to do about it
	Code     error     `json:"-"`                  // its trouble.Code; nil: it has none
	Keys     []string  `json:"-"`                  // the keys of the spec whose values are at fault

	Passes bool   `json:"-"` // of Unknown: the cause passes by waiting, so that an apply makes the other changes
	Silent string `json:"-"` // of Deferred: the reader that does not answer, and why
}

// now says that nothing keeps the change from being made.
func (r Reason) now() bool { return r.Cannot == "" && r.Deferred == "" && r.Unknown == "" }

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
		return Reason{Deferred: later.Until, When: later.When, Silent: later.Silent}
	case trouble.IsUnknown(err):
		return unknownBecause(err)
	case trouble.Passes(err):
		return waitsFor(err)
	}
	return cannot(err)
}

// unseenBecause turns the error of a look into a Reason: where the look has not found that the thing
// must wait, its state is unknown.
func unseenBecause(err error) Reason {
	isLater := errors.As(err, new(host.Later))
	isWait := errors.As(err, new(trouble.Wait))
	if isLater || !trouble.IsUnknown(err) && (isWait || trouble.Concludes(err)) {
		return reasonOf(err)
	}
	return unknownBecause(err)
}

// unknownBecause is the Reason of a change to a thing whose state could not be read.
func unknownBecause(err error) Reason {
	r := cannot(err)
	r.Unknown = r.Cannot
	r.Cannot = ""
	r.Passes = trouble.Passes(err)
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
func (l Line) trouble() *trouble.Error {
	r := l.Reason
	switch {
	case r.Unknown != "":
		return unknownTrouble([]Line{l})
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
func reasons(all []Line) (joined *trouble.Error) {
	named := map[string]bool{}
	for _, c := range cannotFirst(all) {
		next := c.trouble()
		if c.Unknown != "" {
			if named[c.Unknown] {
				continue
			}
			named[c.Unknown] = true
			next = unknownTrouble(sameUnknown(all, c))
		}
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
		if joined.Err == nil || c.Unknown == "" || trouble.IsUnknown(joined.Err) {
			joined.Err = errors.Join(joined.Err, next.Err)
		}
	}
	return joined
}

// cannotFirst returns the changes that cannot be made before the others: their error counts, since
// an operator has to act.
func cannotFirst(all []Line) []Line {
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(a, b Line) int {
		return cmp.Compare(rank(a), rank(b))
	})
	return ordered
}

func rank(c Line) int {
	if c.Cannot != "" {
		return 0
	}
	return 1
}

// sameUnknown returns the changes whose state is unknown for the reason of one: an API server that
// does not answer is one reason for dozens of labels.
func sameUnknown(all []Line, like Line) (same []Line) {
	for _, c := range all {
		if c.Unknown == like.Unknown {
			same = append(same, c)
		}
	}
	return same
}

// unknownTrouble says that the state of things is unknown, all for the reason of the first.
func unknownTrouble(same []Line) *trouble.Error {
	r := same[0].Reason
	cause := &trouble.Error{What: r.Unknown, Passing: r.Passes, Err: r.Code}
	unknown := &trouble.Unknown{What: names(ChangesOf(same)), Err: cause}
	return &trouble.Error{
		What:    unknown.Error(),
		Because: slices.Clone(r.Because),
		Try:     slices.Clone(r.Try),
		Err:     unknown,
	}
}

// refuse returns an error that names the changes that cannot be made; nil if it gets none.
func refuse(cannot []Line) error {
	t := reasons(cannot)
	if t == nil {
		return nil
	}

	t.Undone = append(t.Undone, trouble.NothingTouched)
	return t
}

// waiting returns an error that names what the remaining changes wait for; nil if each waits for a
// later boot at most.
func waiting(left []Line) error {
	t := reasons(left)
	if t == nil {
		return nil
	}

	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run the same command again: it continues from here"}
	}
	return t
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
