// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// check is something that can be looked at and not made: "8 GPUs on the bus". Its state is "ok" or what is wrong.
type check struct {
	name string
	look func(context.Context, host.View) (problem string, err error)
}

// orTry begins a line of a problem that says a mend.
const orTry = "try: "

// OrTry is added to a problem that has a mend of its own, beside the check's: one that depends on what was found.
func OrTry(mend string) string {
	if mend == "" {
		return ""
	}
	return "\n" + orTry + mend
}

// Check wants look to find no problem. What it finds stops an apply before anything is touched; try says the mend. A problem's lines
// after the first say more about it, as those of an error that a program has told in several; OrTry adds what can be done.
func Check(name string, look func(context.Context, host.View) (problem string, err error), why string, try ...string) converge.Want {
	return converge.Want{Thing: check{name, look}, Why: why, To: func(found converge.State) (converge.State, error) {
		if found == "ok" {
			return found, nil
		}
		what, more, _ := strings.Cut(string(found), "\n")
		t := &converge.Trouble{What: what, Try: slices.Clone(try)}
		for line := range strings.Lines(more) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, orTry) {
				t.Try = append(t.Try, strings.TrimPrefix(line, orTry))
			} else if line != "" {
				t.Because = append(t.Because, line)
			}
		}
		return "", t
	}}
}

func (c check) Kind() string { return "check" }
func (c check) Name() string { return c.name }

func (c check) Look(ctx context.Context, v host.View) (converge.State, error) {
	problem, err := c.look(ctx, v)
	if err != nil || problem != "" {
		return converge.State(problem), err
	}
	return "ok", nil
}

func (c check) Make(context.Context, host.Host, converge.State) error {
	return fmt.Errorf("internal error: a check cannot be made: %s", c.name)
}
