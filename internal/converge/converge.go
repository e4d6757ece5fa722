// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package converge is the engine: it brings a machine to a desired state, and back.
//
// A Stage is a pure list of Wants. A Want is a Thing and its desired state. A Thing can be looked at and made.
// A Change is a Thing's Before and After. Plan, diff, no-op, verification, undo, resume and drift are derived from
// these four words, here, once, for every stage there is. The engine knows no kind of thing by name.
package converge

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A State is the state of one thing, as canonical text; "" means it is not there. The engine compares, journals and prints it. Only its
// own kind takes it apart.
type State string

// A Thing is one part of a machine whose state can be looked at and made: the smallest that is owned, undone, left and told alone.
type Thing interface {
	Ref() Ref                                       // its kind and name, and what else builds the Thing again
	Look(context.Context, host.View) (State, error) // never changes anything; host.Later where the state cannot be known yet
	Make(context.Context, host.Host, State) error   // also makes the Before of an undo; host.Reboot where it takes effect after a reboot
}

// A Want is a thing and its desired state, as a pure and idempotent function of the state found.
type Want struct {
	Thing
	To      func(found State) (State, error)
	Why     string              // one line, shown by plan
	Section string              // the spec's section that asks for it; "" = the stage's name
	Breaks  []string            // what making it interrupts: restart-runtime, restart-kubelet, …
	Clients map[string][]string // the processes that each of the breaks affects, where that is not all that hold a GPU
	Keeps   string              // why undo does not revert it
	Leaves  string              // what undo cannot remove elsewhere
	Brings  []string            // kernel modules that making it puts on disk or takes away, beside the thing itself: a package's

	AsFound  bool // To gets the state found, gpuadm's earlier changes included: the least disturbing target depends on it
	Releases bool // the stage stops managing what it made earlier: it has another owner, and gpuadm only verifies it
}

// A Stage names one part of the bootstrap and says what it wants. Wants is pure.
type Stage struct {
	Name     string // "runtime"
	About    string // "points the container engine at the NVIDIA runtime"
	Wants    func(spec.Spec, facts.Facts) ([]Want, error)
	Needs    func(spec.Spec) facts.Needs                      // facts that cost more, for its wants; nil: none
	Notes    func(host.View, spec.Spec, facts.Facts) []string // what no want says, in sentences without a full stop; nil: nothing
	Verifies string                                           // an earlier stage that only this one verifies: rolled back with it, and in its undo this one's Followers settle again
	Whole    bool                                             // it speaks for the whole machine: made only where all stages before it are converged
	Holds    bool                                             // an apply makes nothing after it while something in it waits
}

// A Change is one line of a plan. It is data: printed, journalled, reversed.
type Change struct {
	Stage   string `json:"stage"`
	Section string `json:"section,omitempty"`
	Ref
	Before     State               `json:"before"`
	After      State               `json:"after"`
	Why        string              `json:"why,omitempty"`
	Breaks     []string            `json:"breaks,omitempty"`
	Clients    map[string][]string `json:"clients,omitempty"`
	Keeps      string              `json:"keeps,omitempty"`
	Lost       string              `json:"lost,omitempty"` // why its Before may not come back: no repository has that version any more
	Leaves     string              `json:"leaves,omitempty"`
	Brings     []string            `json:"brings,omitempty"`     // kernel modules that making it puts on disk or takes away
	Left       []string            `json:"left,omitempty"`       // gpuadm's parts that stay, since they were changed outside gpuadm
	Dependency bool                `json:"dependency,omitempty"` // a dependency of another change: only undo reverts it
	Follows    bool                `json:"follows,omitempty"`    // the thing is a Follower: it has no Before to restore
	Affects    []Ref               `json:"affects,omitempty"`    // what must settle after this, and after its undo
	Unsure     bool                `json:"unsure,omitempty"`     // of a run that was cut short, which may not have made it
	Diff       string              `json:"diff,omitempty"`       // unified diff of the bytes, secrets masked; not journalled
	Reason                         // why it is not made now; the zero Reason: it is
}

// Home is the folder that holds the journal and the blobs.
const Home = "/var/lib/gpuadm"

// What follows a kind implements where it has more to say.

// A Stored thing's State names bytes by their SHA-256. The engine keeps them beside the journal and shows them as a diff.
type Stored interface {
	Thing
	Bytes(host.View, State) ([]byte, error) // what a state names, from memory or from the blobs; nil for ""
	Digest(State) string                    // the SHA-256 by which it names them, in hex; "" for none
}

// A Batch is made together with its mates of the same kind and stage: packages in one transaction, labels in one PATCH.
type Batch interface {
	Thing
	MakeAll(context.Context, host.Host, []Change) error
}

// A Resolver is a Batch whose changes bring further changes of their kind: a package brings its dependencies.
type Resolver interface {
	Batch
	// Resolve returns what making the pending changes would change: the same with what To left open filled in, and the further ones.
	// host.Later if that cannot be known yet.
	Resolve(ctx context.Context, v host.View, pending []Change) ([]Change, error)
	// Lacks returns those changes of an undo that cannot be made, since what they bring back is lost, each with the reason in Lost.
	Lacks(ctx context.Context, v host.View, pending []Change) ([]Change, error)
}

// A Follower comes after all other things of its stage, in undo too, and has no Before: a daemon whose files have changed. Both are pure.
type Follower interface {
	Thing
	Affected(found State, by Change) State // its state after another change
	Current(found State) State             // its desired state
}

// A Supplier is a Follower that a Resolver gets its answers from: the lists of what repositories hold. On the way back what it follows is
// restored before what a Resolver draws from it.
type Supplier interface {
	Follower
	Supplies()
}

// A Merger can take gpuadm's part out of a state that was changed outside gpuadm since; any other thing is gpuadm's as a whole.
type Merger interface {
	Thing
	// TakeOut returns found without the change from before to after, part by part. left names, in one clause each, gpuadm's parts that
	// stay, because they were changed outside gpuadm since. A part that is missing counts as taken out; found itself is not empty. It
	// fails only where it cannot tell the parts.
	TakeOut(v host.View, found, before, after State) (rest State, left []string, err error)
}

// A Validator has a change verified before anything is touched, by the daemon that will read the file. found is without gpuadm's earlier
// changes. Undo does not ask it.
type Validator interface {
	Thing
	Validate(ctx context.Context, v host.View, found, after State) error
}

// A Guarded thing may be protected by another tool: then an operator has to allow its change. left is the state that gpuadm last left it
// in; "" if none. Guards is pure.
type Guarded interface {
	Thing
	Guards(found, left, after State) (allow, who string) // "" where nothing protects it
}

// A Disruptor names what a change interrupts now. Undo asks it too: the journal's answer may be out of date.
type Disruptor interface {
	Thing
	Breaks(ctx context.Context, v host.View, before, after State) (what []string, clients map[string][]string, err error)
}
