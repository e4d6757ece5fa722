// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
)

// PlanFormat is the version of the plan's JSON.
const PlanFormat = 1

// A Plan says what an apply would do. It is what `plan -o json` prints, and the text is rendered
// from it.
type Plan struct {
	Format    int         `json:"format"`
	Host      Host        `json:"host"`
	Stages    []StagePlan `json:"stages"`
	Changes   []Line      `json:"changes"`
	Converged int         `json:"converged"`       // wants that are converged
	Deferred  int         `json:"deferred"`        // changes that wait for an event
	Unknown   int         `json:"unknown"`         // things whose state could not be read
	State     Outcome     `json:"state"`           // all of this in one word
	Later     []Later     `json:"later,omitempty"` // values of the spec that only a later moment can judge
	Notes     []string    `json:"notes,omitempty"`

	// Reboot is the pending change for which a run of this boot has asked for a reboot;
	// "" for none.
	Reboot string `json:"asks_for_reboot,omitempty"`

	found []Found // the states of Perishable things
}

// Host names the machine and the spec that a plan is for.
type Host struct {
	Root    string      `json:"root"`
	Summary string      `json:"summary"`
	Spec    string      `json:"spec"` // the spec's digest
	Facts   facts.Facts `json:"facts"`
}

// StagePlan counts one stage's wants.
type StagePlan struct {
	Name      string `json:"name"`
	Converged int    `json:"converged"`
	Changes   int    `json:"changes"` // also those that are deferred, unknown, or cannot be made
}

// Later is a value of the spec that only a later moment can judge.
type Later struct {
	Key   string `json:"key"` // "proxy.https"
	Value string `json:"value"`
	At    string `json:"at,omitempty"` // "/etc/gpuadm/node.toml:7"; "" if it is not known
	Until string `json:"until"`        // "when apt reads the repository"
}

// Cannot returns the changes that cannot be made.
func (p Plan) Cannot() []Line {
	return p.only(func(c Line) bool { return c.Cannot != "" })
}

// Unseen returns the changes to things whose state could not be read.
func (p Plan) Unseen() []Line {
	return p.only(func(c Line) bool { return c.Unknown != "" })
}

// Blind returns an error that names the things whose state could not be read; nil if
// there are none.
func (p Plan) Blind() error {
	t := reasons(p.Unseen())
	if t == nil {
		return nil
	}
	return t
}

// refused returns the changes that keep an apply from touching anything.
func (p Plan) refused() []Line { return p.only(func(c Line) bool { return c.refused() }) }

func (p Plan) only(wanted func(Line) bool) []Line {
	return slices.DeleteFunc(slices.Clone(p.Changes), func(c Line) bool { return !wanted(c) })
}

// Now counts the pending changes: those that an apply would make at once, and those that it cannot
// make.
func (p Plan) Now() int { return len(p.Changes) - p.Deferred - p.Unknown }

// NeedsReboot returns why the rest of the plan takes effect only after a reboot; "" if it does not.
func (p Plan) NeedsReboot() string {
	i := slices.IndexFunc(p.Changes, isAfterReboot)
	if i < 0 {
		return ""
	}
	return p.Changes[i].Why
}

// refuse adds a change that cannot be made, or whose value could not be looked at.
func (p *Plan) refuse(c Line) {
	p.Changes = append(p.Changes, c)
	if c.Unknown != "" {
		p.Unknown++
	}
	i := slices.IndexFunc(p.Stages, func(st StagePlan) bool { return st.Name == c.Stage })
	if i >= 0 {
		p.Stages[i].Changes++
	}
}

// outcome is what a plan comes to.
func (p Plan) outcome() Outcome {
	isAwaited := func(c Line) bool { return c.Waits != "" }
	switch {
	case len(p.Cannot()) > 0:
		return EndsCannot
	case p.Unknown > 0:
		return EndsUnknown
	case p.Now() > 0:
		return EndsPending
	case len(p.only(isAwaited)) > 0:
		return EndsWaiting
	case p.NeedsReboot() != "":
		return EndsReboot
	case p.Deferred > 0:
		return EndsDeferred
	}

	return EndsConverged
}
