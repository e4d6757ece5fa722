// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// obstacles returns an error that says what prevents an undo; nil if nothing does. to and leave are
// the arguments of that undo.
func obstacles(steps []step, to string, leave []string) error {
	t := &trouble.Error{}
	var whys []string
	cannot := false // an operator has to act, whatever else could not be looked at
	for _, s := range steps {
		if !s.blocked() {
			continue
		}
		leave = append(slices.Clone(leave), s.Name)
		passes := trouble.Passes(s.err)
		refuses := !s.unseen && !passes
		if refuses || !cannot && (t.Err == nil || !passes) {
			cannot = cannot || refuses
			t.Err = s.err
			if s.unseen {
				t.Err = &trouble.Unknown{What: s.String(), Err: s.err}
			}
		}

		why := s.Cannot
		if s.unseen {
			why = whyUnseen(steps, s.err)
		}
		if slices.Contains(whys, why) {
			continue
		}
		whys = append(whys, why)
		t.Because = appendUnique(t.Because, s.Because...)
		t.Try = appendUnique(t.Try, s.Try...)
	}

	if len(whys) == 0 {
		return nil
	}

	t.What = whys[0]
	t.Because = slices.Concat(whys[1:], t.Because)
	t.Undone = append(t.Undone, trouble.NothingTouched)
	if trouble.Passes(t.Err) && len(t.Try) == 0 {
		t.Try = []string{"wait, and run the same command again"}
	}
	t.Try = append(t.Try, "undo the rest: "+undoCommand(to, leave))
	return t
}

// whyUnseen names all steps whose state cannot be read for the same reason: an API server that is
// down is one reason for dozens of labels.
func whyUnseen(steps []step, err error) string {
	var unseen []Change
	for _, s := range steps {
		if s.blocked() && s.unseen && s.err.Error() == err.Error() {
			unseen = append(unseen, s.Change)
		}
	}

	why := err.Error()
	var wait trouble.Wait
	if errors.As(err, &wait) && wait.Error() == why {
		why = wait.For
	}
	return fmt.Sprintf("cannot read the state of %s: %s", Names(unseen), why)
}

// undoCommand is the command line of an undo that leaves some things.
func undoCommand(to string, leave []string) string {
	return trouble.Command(UndoOf(to, leave))
}

// UndoOf is the verb of an undo that leaves some things, with its flags.
func UndoOf(to string, leave []string) string {
	words := "undo"
	if to != "" {
		words += " --to " + host.ShellWord(to)
	}
	for _, name := range leave {
		words += " --leave " + host.ShellWord(name)
	}
	return words
}
