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
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Distrust says what to do about what View.Trusted refuses on a machine whose files lie at root.
func Distrust(root string, err error) *trouble.Error {
	u := (*host.Untrusted)(nil)
	if !errors.As(err, &u) {
		return &trouble.Error{What: err.Error(), Err: err}
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
	t := &trouble.Error{What: fmt.Sprintf("cannot trust %s: %s", path.Join(root, u.Name), whys[0]), Err: err}
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

// DriverLoads waits for a unit that loads the driver.
func DriverLoads(unit string) trouble.Wait {
	return trouble.Wait{For: unit + " loads the NVIDIA driver", Try: []string{"journalctl -u " + unit}}
}

// unknown replaces the wants of a stage that does not know them yet, or cannot be made as a whole.
type unknown struct {
	stage string
	err   error
}

func (u unknown) Ref() Ref { return Ref{Kind: "check", Name: u.stage} }

func (u unknown) Look(context.Context, host.View) (State, error) { return "", u.err }

func (u unknown) Make(context.Context, host.Host, State) error { return u.err }

// standIn is the one step of a stage that knows none. One that waits is looked at again.
func standIn(stage string, err error) (s step) {
	u := unknown{stage, err}
	s.Change = Change{Stage: stage, Ref: u.Ref(), Reason: reasonOf(err)}
	if trouble.Passes(err) {
		s.want.Thing = u
	}
	return s
}

// waiting returns what the changes that are left wait for, as an error; nil if none waits for more than a later boot.
func waiting(left []Change) error {
	var t *trouble.Error
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

// also adds lines, each of them once.
func also(all []string, lines ...string) []string {
	for _, line := range lines {
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
