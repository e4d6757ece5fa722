// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Line is a change as a plan and an event show it: with what only this moment can tell of it.
type Line struct {
	Change
	Left    []string `json:"left,omitempty"`    // gpuadm's parts that stay, changed outside gpuadm
	Diff    string   `json:"diff,omitempty"`    // of the bytes, unified, secrets masked
	Drawing string   `json:"drawing,omitempty"` // of the two states, as lines that begin with +, - or a blank
	Reason           // why it is not made now; the zero Reason: it is
}

// ChangesOf returns the changes of some lines.
func ChangesOf(lines []Line) (list []Change) {
	for _, l := range lines {
		list = append(list, l.Change)
	}
	return list
}

// Names lists the things of some changes, the first three by name: a Batch may have dozens.
func Names(all []Change) string {
	var list []string
	for _, c := range all {
		list = append(list, c.String())
	}
	return strings.Join(trouble.Few(list, 3), ", ")
}

// trouble is the reason as an error; nil if an operator has nothing to do.
func (l Line) trouble() *trouble.Error {
	r := l.Reason
	switch {
	case r.Unknown != "":
		return unknownTrouble([]Line{l})
	case r.Cannot != "":
		return &trouble.Error{
			What:    r.Cannot,
			Because: r.Because,
			Try:     r.Try,
			Err:     r.Code,
		}
	case r.Waits != "":
		wait := trouble.Wait{For: r.Waits, Err: r.Code}
		return &trouble.Error{
			What:    r.Waits,
			Because: r.Because,
			Try:     r.Try,
			Err:     wait,
		}
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
		if c.Unknown == "" || trouble.IsUnknown(joined.Err) {
			joined.Err = errors.Join(joined.Err, next.Err)
		}
	}

	return joined
}

// cannotFirst returns the changes that cannot be made before the others: their error counts, since
// an operator has to act.
func cannotFirst(all []Line) []Line {
	ordered := slices.Clone(all)
	sorting.By(ordered, func(a, b Line) int {
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
	unknown := &trouble.Unknown{What: Names(ChangesOf(same)), Err: cause}
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
