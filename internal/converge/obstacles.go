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
	var all []string
	for _, s := range steps {
		if !s.blocked() {
			continue
		}
		leave = append(slices.Clone(leave), s.Name)
		if t.Err == nil || !trouble.Passes(s.err) {
			t.Err = s.err
		}
		why := s.Cannot
		if s.unseen { // an API server that is down is one reason for dozens of labels
			same := slices.Clone(steps)
			same = slices.DeleteFunc(same, func(o step) bool { return !o.blocked() || !o.unseen || o.err.Error() != s.err.Error() })
			if w := (trouble.Wait{}); errors.As(s.err, &w) && w.Error() == s.err.Error() {
				why = w.For
			} else {
				why = s.err.Error()
			}
			why = fmt.Sprintf("cannot read the state of %s: %s", names(changes(same)), why)
		}
		if slices.Contains(all, why) {
			continue
		}
		all = append(all, why)
		t.Because, t.Try = also(t.Because, s.Because...), also(t.Try, s.Try...)
	}
	if len(all) == 0 {
		return nil
	}
	t.What = all[0]
	t.Because = append(append(all[1:], t.Because...), nothingTouched)
	if trouble.Passes(t.Err) && len(t.Try) == 0 {
		t.Try = []string{"wait, and run the same command again"}
	}
	t.Try = append(t.Try, "undo the rest: "+undoing(to, leave))
	return t
}

// undoing is the command line of an undo that leaves some things.
func undoing(to string, leave []string) string { return trouble.Command(UndoOf(to, leave)) }

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
