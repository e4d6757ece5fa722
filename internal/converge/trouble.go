// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Trouble is an error that a person can act on.
type Trouble struct {
	What    string   // cannot <verb> <object>: <cause>
	Because []string // why, in more words
	Undone  []string // what was rolled back
	Try     []string // what to type or change next
	Err     error    // the cause, for errors.Is and errors.As
}

func (t *Trouble) Error() string {
	if t.What == "" && t.Err != nil {
		return t.Err.Error()
	}
	return t.What
}

func (t *Trouble) Unwrap() error { return t.Err }

// Distrust says what to do about what View.Trusted refuses on a machine whose files lie at root.
func Distrust(root string, err error) *Trouble {
	u := (*host.Untrusted)(nil)
	if !errors.As(err, &u) {
		return &Trouble{What: err.Error(), Err: err}
	}
	var whys, fix []string
	for _, part := range []struct {
		argv   string
		faults []host.Fault
	}{{"chown root:root", u.Owners}, {"chmod go-w", u.Modes}} {
		for _, f := range part.faults {
			name, what := path.Join(root, f.Name), "it"
			if f.Name != u.Name {
				what = name
			}
			whys, part.argv = append(whys, f.Why+" "+what), part.argv+" "+host.ShellWord(name)
		}
		if len(part.faults) > 0 {
			fix = append(fix, part.argv)
		}
	}
	t := &Trouble{What: fmt.Sprintf("cannot trust %s: %s", path.Join(root, u.Name), whys[0]), Err: err}
	const most = 4
	for _, why := range whys[1:min(most, len(whys))] {
		t.Because = append(t.Because, "also: "+why)
	}
	if more := len(whys) - most; more > 0 {
		t.Because = append(t.Because, fmt.Sprintf("also: %d more, which the command names", more))
	}
	t.Because = append(t.Because, "a user who can change it decides what root does here", nothingTouched)
	t.Try = []string{"see what is in it, then: " + strings.Join(fix, " && ")}
	return t
}

// Wait reports that what is missing comes by itself, or from others: a device plugin that has not registered yet. Nothing is
// rolled back for it, and the same command continues from there.
type Wait struct {
	For string   // "the device plugin offers 7 of 8 GPUs"
	Try []string // what to do if it does not come
}

func (w Wait) Error() string { return "not yet: " + w.For }

// Waits says that waiting helps.
func (Wait) Waits() bool { return true }

// Passes says whether an error passes by waiting: a Wait, or what says so of itself, like an API server that does not answer.
func Passes(err error) bool {
	w := interface{ Waits() bool }(nil)
	return errors.As(err, &w) && w.Waits()
}

// DriverLoads waits for a unit that loads the driver.
func DriverLoads(unit string) Wait {
	return Wait{For: unit + " loads the NVIDIA driver", Try: []string{"journalctl -u " + unit}}
}

// unknown replaces the wants of a stage that does not know them yet, or cannot be made as a whole.
type unknown struct {
	stage string
	err   error
}

func (u unknown) Kind() string { return "check" }
func (u unknown) Name() string { return u.stage }

func (u unknown) Look(context.Context, host.View) (State, error) { return "", u.err }

func (u unknown) Make(context.Context, host.Host, State) error { return u.err }

// standIn is the one step of a stage that knows none. One that waits is looked at again.
func standIn(stage string, err error) (s step) {
	u := unknown{stage, err}
	s.Change = Change{Stage: stage, Ref: Ref{Kind: u.Kind(), Name: stage}, Reason: reasonOf(err)}
	if Passes(err) {
		s.want.Thing = u
	}
	return s
}

// waiting returns what the changes that are left wait for, as an error; nil if none waits for more than a later boot.
func waiting(left []Change) error {
	var t *Trouble
	for _, c := range left {
		switch {
		case c.Waits == "":
		case t == nil:
			t = c.trouble()
		case c.Waits != t.What:
			t.Because = also(t.Because, "also: "+c.Waits)
		}
	}
	if t == nil {
		return nil
	}
	if len(t.Try) == 0 {
		t.Try = []string{"wait, and run the same command again: it continues from here"}
	}
	return t
}

// Few keeps the first lines of a list, each once, and counts the others: a user may have started thousands of processes.
func Few(all []string, most int) []string {
	seen := make(map[string]bool, len(all))
	all = slices.DeleteFunc(slices.Clone(all), func(line string) bool {
		repeated := seen[line]
		seen[line] = true
		return repeated
	})
	if more := len(all) - most; more > 0 {
		return append(all[:most:most], fmt.Sprintf("and %d more", more))
	}
	return all
}

// also adds lines, each of them once.
func also(all []string, lines ...string) []string {
	for _, line := range lines {
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
