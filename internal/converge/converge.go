// SPDX-License-Identifier: Apache-2.0

// Package converge is the engine: it brings a machine to a desired state, and back.
//
// A Stage is a pure list of Wants. A Want is a Thing and its desired state. A Thing can be looked
// at and made. A Change is a Thing's Before and After, as the journal keeps it; a Line is a Change
// as a plan shows it. Plan, diff, no-op, verification, undo, resume and drift are derived from
// these five words, here, once, for all stages. The engine knows no kind of thing by name.
//
// Read the words first: converge.go, kinds.go and engine.go. The others come in this order, and
// each file uses those after it, never one before (TestReadsDown in test/house):
//
//   - what an operator asks for: status.go, apply.go, undo.go
//   - a run at work: rollback.go, make.go, reboot.go, prune.go, lastspec.go
//   - what a run refuses: downgrade.go, consent.go, obstacles.go
//   - how steps are planned: planning.go, whole.go, wants.go, look.go
//   - what depends on what: followers.go, perishable.go, resolve.go, named.go
//   - a run, and what it knows: run.go, machine.go, step.go, takeout.go
//   - what the journal knows: compact.go, lesson.go, runs.go, owned.go, usual.go, journal.go, blobs.go
//   - what is reported: plan.go, outcome.go, result.go
//   - the words: engine.go, event.go, times.go, line.go, reason.go, kinds.go, converge.go, lists.go
package converge

import (
	"cmp"
	"context"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Home is the folder that holds the journal and the blobs.
const Home = "/var/lib/gpuadm"

// A State is the state of one thing, as canonical text; "" means that the thing does not exist. The
// engine compares, journals and prints it. Only the thing's own kind takes it apart.
type State string

// A Thing is one part of a machine whose state can be looked at and made: the smallest unit that
// gpuadm owns, undoes and reports.
type Thing interface {
	// Ref returns the thing's kind and name, and what else builds the Thing again.
	Ref() Ref
	// Look returns the thing's state and never changes anything. The error is a host.Later where
	// the state cannot be known yet.
	Look(context.Context, host.View) (State, error)
	// Make brings the thing to a state, also to the Before of an undo. The error is a host.Reboot
	// where the state takes effect after a reboot.
	Make(context.Context, host.Host, State) error
}

// A Want is a thing and its desired state.
type Want struct {
	Thing

	// To returns the desired state for the state found. It is pure and idempotent.
	To func(found State) (State, error)

	Why      string   // one line, shown by plan
	Section  string   // the spec's section that asks for it; "" = the stage's name
	Keeps    string   // why undo does not revert it
	UndoOnly string   // why neither a roll-back nor a changed spec reverts it: only undo does
	Brings   []string // kernel modules that making it also installs or removes: those in a package

	// Breaks is what making it interrupts: restart-runtime, restart-kubelet, … Clients has for a
	// break the processes that it affects. A break that is not in Clients affects all processes
	// that hold a GPU.
	Breaks  []string
	Clients map[string][]string

	// AsFound: To gets the state found, gpuadm's earlier changes included, because the least
	// disturbing target depends on it.
	AsFound bool
	// Stays: the thing is right as it is until its Resolver knows better.
	Stays bool
	// Releases: the stage stops managing what it made earlier. The things have another owner now,
	// and gpuadm only verifies them.
	Releases bool
}

// A Stage names one part of the bootstrap and says what it wants.
type Stage struct {
	Name  string // "runtime"
	About string // "points the container engine at the NVIDIA runtime"

	// Wants returns the stage's things and their desired states. It is pure.
	Wants func(spec.Spec, facts.Facts) ([]Want, error)
	// Needs returns the costly facts that Wants reads; nil: none.
	Needs func(spec.Spec) facts.Needs
	// Notes returns what no want says, in sentences without a full stop; nil: nothing.
	Notes func(host.View, spec.Spec, facts.Facts) []string

	// Verifies names an earlier stage that only this one verifies: the two are rolled back
	// together, and undoing the earlier one affects this one's Followers.
	Verifies string

	// Follows names earlier stages whose changes affect this one's Followers. In an apply they are
	// made in this stage; undo of the others' changes makes them current too.
	Follows []string

	// Restores returns what a roll-back brings back beside the stage's things, by name and in
	// words: what a package's own scripts build. Where it differs after a roll-back, gpuadm says
	// so. nil: nothing.
	Restores func(facts.Facts) map[string]string

	Whole bool // gpuadm makes it only where all stages before it are converged, for this kernel
	Holds bool // an apply makes nothing after it while something in it waits
}

// A Change is what the journal keeps of a change: what undo needs to revert it.
type Change struct {
	Stage   string `json:"stage"`
	Section string `json:"section,omitempty"`
	Ref
	Before State  `json:"before"`
	After  State  `json:"after"`
	Why    string `json:"why,omitempty"`

	Breaks   []string            `json:"breaks,omitempty"`
	Clients  map[string][]string `json:"clients,omitempty"`
	Keeps    string              `json:"keeps,omitempty"`
	UndoOnly string              `json:"undo_only,omitempty"` // why only undo reverts it
	Brings   []string            `json:"brings,omitempty"`    // kernel modules that making it installs or removes

	Lost       string `json:"lost,omitempty"`       // why its Before may not come back: no source has it
	Dependency bool   `json:"dependency,omitempty"` // a dependency of another change: only undo reverts it
	Follows    bool   `json:"follows,omitempty"`    // the thing is a Follower: it has no Before to restore
	Affects    []Ref  `json:"affects,omitempty"`    // the Followers that the change and its undo affect
	Unsure     bool   `json:"unsure,omitempty"`     // of a run that was cut short, which may not have made it
}

// section is the spec's section that asked for the change.
func (c Change) section() string { return cmp.Or(c.Section, c.Stage) }

// A Ref names a Thing, and is what builds it again.
type Ref struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Reads []string `json:"reads,omitempty"` // files on which the thing depends too
	Form  string   `json:"form,omitempty"`  // the form of its bytes, by which undo finds the same merger again
}

// Found is the state in which a run has found a thing.
type Found struct {
	Ref
	State State `json:"state"`
}

// String is the thing's kind and name.
func (r Ref) String() string { return r.Kind + " " + r.Name }

// key identifies a thing, and is comparable. The form is not in it: a thing in another form is the
// same thing.
type key struct{ kind, name, reads string }

func (r Ref) key() key { return key{r.Kind, r.Name, strings.Join(r.Reads, "\n")} }

// covers says that making r makes other too: both are the same thing, and r reads all files that
// other reads.
func (r Ref) covers(other Ref) bool {
	return r.Kind == other.Kind && r.Name == other.Name && subset(other.Reads, r.Reads)
}
