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
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A State is the state of one thing, as canonical text; "" means it is not there.
// Text, so that it can be compared, journalled and read by code that does not know the kind.
type State string

// A Thing is one part of a machine whose state can be looked at and made.
type Thing interface {
	Kind() string                                   // "file"
	Name() string                                   // with Kind and a Reader's files, enough to build the Thing again
	Look(context.Context, host.View) (State, error) // never changes anything; host.Later where it cannot be looked at yet
	Make(context.Context, host.Host, State) error   // the same forwards and back; host.Reboot where it holds only after one
}

// A Reader depends on files beside its name: undo must know them too.
type Reader interface {
	Thing
	Reads() []string
}

// A Stored thing's State names bytes by their SHA-256. The engine keeps them beside the journal and shows them as a diff.
type Stored interface {
	Thing
	// Bytes returns what a state names, from memory or from the blobs; nil for "".
	Bytes(host.View, State) ([]byte, error)
}

// A Batch is made together with its neighbours of the same kind: packages in one transaction, labels in one PATCH.
type Batch interface {
	Thing
	MakeAll(context.Context, host.Host, []Change) error
}

// A Resolver is a Batch whose changes draw others of their kind along: a package brings its dependencies.
type Resolver interface {
	Batch
	// Resolve is handed all changes of the kind that a stage has pending, and returns what making them would change: the
	// same with what To left open filled in, and those drawn along, with Drawn set. host.Later if that cannot be known yet.
	Resolve(ctx context.Context, v host.View, pending []Change) ([]Change, error)
}

// A Settler is looked at and made after all other things of its stage, in undo too, and has no Before to restore:
// a daemon restarted because files it reads have changed.
type Settler interface {
	Thing
	// Unsettled returns how it will stand once the other change is made. Pure.
	Unsettled(found State, by Change) State
	// Settled returns how it shall stand, from how it was found. Pure.
	Settled(found State) State
}

// A Merger can take our part out of what was changed outside gpuadm since.
type Merger interface {
	Thing
	// TakeOut returns found without our change from before to after, part by part. left names, in one clause each, what of ours stays
	// as it is found, because it was changed outside gpuadm since. What is not there counts as taken out; found itself is there. It
	// fails only where it can say nothing.
	TakeOut(v host.View, found, before, after State) (rest State, left []string, err error)
}

// A Prover can have a change judged before anything is touched: by the daemon that will read the file. It is shown the thing as
// it was found, without what we made of it earlier, which is not to be missed when the spec has changed.
type Prover interface {
	Thing
	Prove(ctx context.Context, v host.View, found, after State) error
}

// A Breaker says what making it interrupts, and whom that would hit, by how things are when it is asked. It is asked for every
// change, those of undo and of a shrunk spec included: what the journal knows of that is from another day.
type Breaker interface {
	Thing
	Breaks(ctx context.Context, v host.View, before, after State) (what []string, clients map[string][]string, err error)
}

// A Want is a thing and its desired state, as a pure and idempotent function of the state found.
type Want struct {
	Thing
	To      func(found State) (State, error)
	Why     string   // one line, shown by plan
	Section string   // the spec's section that asks for it; "" = the stage's name
	Breaks  []string // what making it interrupts: restart-runtime, restart-kubelet, stop-clients, lose-partitions, reset-gpu, reboot
	Keeps   string   // why undo does not take it back
	Leaves  string   // what stays elsewhere, out of reach, once it is undone

	// AsFound has To go by the state found, what gpuadm made earlier included: what disturbs least depends on it.
	AsFound bool
	// Releases stops managing what the stage made earlier: another owner has it now, and only verifying is left to us.
	Releases bool

	// Clients has for each of the breaks whom it would hit, where that is known better than by who holds any GPU.
	Clients map[string][]string
}

// A Stage names one part of the bootstrap and says what it wants. Wants is pure.
type Stage struct {
	Name  string // "runtime"
	About string // "points the container engine at the NVIDIA runtime"
	Wants func(spec.Spec, facts.Facts) ([]Want, error)
	Needs func(spec.Spec) facts.Needs // facts that cost more, for its wants; nil: none
	// Proves names an earlier stage whose changes show their worth only here: if this stage fails they are put back too, with
	// those of the stage that it proves in turn, and what settles here settles again when they are undone.
	Proves string
	// Whole says that the stage speaks for the whole machine: it is looked at only where all stages of the sequence before it
	// stand, also those that were not asked for.
	Whole bool
	// Notes says what a person may want to know and no want says: in sentences, without a full stop. nil: nothing.
	Notes func(host.View, spec.Spec, facts.Facts) []string
}

// A Change is one line of a plan. It is data: printed, journalled, turned round.
type Change struct {
	Stage     string    `json:"stage"`
	Section   string    `json:"section,omitempty"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Reads     []string  `json:"reads,omitempty"` // of a Reader
	Before    State     `json:"before"`
	After     State     `json:"after"`
	Why       string    `json:"why,omitempty"`
	Later     string    `json:"later,omitempty"` // why it cannot be made yet: "first boot"
	When      host.When `json:"when,omitempty"`  // and when, where that is for a program to know
	Breaks    []string  `json:"breaks,omitempty"`
	Keeps     string    `json:"keeps,omitempty"`
	Leaves    string    `json:"leaves,omitempty"`
	Left      []string  `json:"left,omitempty"`      // what of ours stays, since it was changed outside gpuadm
	Drawn     bool      `json:"drawn,omitempty"`     // drawn along by its neighbours, not asked for: it goes back with undo only
	Settles   bool      `json:"settles,omitempty"`   // the thing settles: it has no Before to go back to
	Unsettles []Ref     `json:"unsettles,omitempty"` // what must settle after this, and after its undo
	Unsure    bool      `json:"unsure,omitempty"`    // in a compacted journal: of a run that was cut short, which may not have made it
	// Clients are those that each of the breaks would hit.
	Clients map[string][]string `json:"clients,omitempty"`
	Diff    string              `json:"diff,omitempty"`    // unified diff of the bytes, secrets masked; not journalled
	Cannot  string              `json:"cannot,omitempty"`  // why it cannot be made to stand
	Because []string            `json:"because,omitempty"` // more about Cannot
	Try     []string            `json:"try,omitempty"`     // what to do about Cannot, or Waits
	Waits   string              `json:"waits,omitempty"`   // what it waits for that comes by itself or from others; Later says it shorter
}

// String is the change's thing in two words.
func (c Change) String() string { return c.Kind + " " + c.Name }

// A Ref is what builds a Thing again.
type Ref struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Reads []string `json:"reads,omitempty"` // the files of a Reader
}

func (c Change) ref() Ref { return Ref{c.Kind, c.Name, c.Reads} }

func refOf(t Thing) Ref {
	r := Ref{Kind: t.Kind(), Name: t.Name()}
	if reader, ok := t.(Reader); ok {
		r.Reads = reader.Reads()
	}
	return r
}

// key is a Ref that can be compared.
type key struct{ kind, name, reads string }

func (r Ref) key() key { return key{r.Kind, r.Name, strings.Join(r.Reads, "\n")} }

// covers says that what is done for one is done for the other: the same thing, which reads all that the other reads.
func (r Ref) covers(o Ref) bool {
	return r.Kind == o.Kind && r.Name == o.Name && !slices.ContainsFunc(o.Reads, func(name string) bool { return !slices.Contains(r.Reads, name) })
}

func (c Change) key() key { return c.ref().key() }
func keyOf(t Thing) key   { return refOf(t).key() }

// Home is the folder that holds the journal and the blobs.
const Home = "/var/lib/gpuadm"
