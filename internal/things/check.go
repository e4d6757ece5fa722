// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// check verifies a state that gpuadm cannot make: "8 GPUs on the bus". Its state is "ok" or what is
// wrong.
type check struct {
	name string
	look LookFunc
}

// A LookFunc says what is wrong; "" if nothing is.
type LookFunc func(context.Context, host.View) (problem string, err error)

// orTry is the prefix of a problem's line that names a fix.
const orTry = "try: "

// OrTry is a line to add to a problem: a fix that depends on what look found, in addition to the
// check's own fixes.
func OrTry(fix string) string {
	if fix == "" {
		return ""
	}
	return "\n" + orTry + fix
}

// Check wants look to find no problem. A problem stops an apply before anything is touched; try
// names the fixes. The problem's first line says what is wrong, the others say why; OrTry adds
// fixes.
func Check(name string, look LookFunc, why string, try ...string) converge.Want {
	to := func(found converge.State) (converge.State, error) {
		if found == "ok" {
			return found, nil
		}
		return "", problemError(name, string(found), try)
	}

	return converge.Want{Thing: check{name, look}, Why: why, To: to}
}

// Deferred is a check that an event must come before.
func Deferred(name string, later host.Later, why string) converge.Want {
	look := func(context.Context, host.View) (string, error) { return "", later }
	return Check(name, look, why)
}

// problemError is a problem that a look has found, as an error.
func problemError(name, problem string, try []string) error {
	what, more, _ := strings.Cut(problem, "\n")
	t := &trouble.Error{
		What: what,
		Try:  slices.Clone(try),
		Err:  trouble.Code(name),
	}
	for line := range strings.Lines(more) {
		line = strings.TrimSpace(line)
		fix, isFix := strings.CutPrefix(line, orTry)
		if isFix {
			t.Try = append(t.Try, fix)
		} else if line != "" {
			t.Because = append(t.Because, line)
		}
	}

	return t
}

func (c check) Ref() converge.Ref { return converge.Ref{Kind: "check", Name: c.name} }

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
