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
	Look(context.Context, host.View) (State, error) // never changes anything; host.Later where the state cannot be known yet
	Make(context.Context, host.Host, State) error   // also makes the Before of an undo; host.Reboot where the change takes effect after a reboot
}

// A Reader depends on files beside its name: undo must know them too.
type Reader interface {
	Thing
	Reads() []string
}

// A Formed thing says in which form its bytes are. The journal notes it, so that undo takes an edit out by the merger that knows
// what was written, and does not guess it from the name.
type Formed interface {
	Thing
	Form() string
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

// A Resolver is a Batch whose changes bring further changes of their kind: a package brings its dependencies.
type Resolver interface {
	Batch
	// Resolve gets all pending changes of the kind in a stage, and returns what making them would change: the same changes with
	// what To left open filled in, and the further ones, with Drawn set. host.Later if that cannot be known yet.
	Resolve(ctx context.Context, v host.View, pending []Change) ([]Change, error)
}

// A Settler comes after all other things of its stage, in undo too, and has no Before to restore: a daemon that must restart
// because its files have changed.
type Settler interface {
	Thing
	// Unsettled returns its state after the other change. Pure.
	Unsettled(found State, by Change) State
	// Settled returns its desired state, from the state found. Pure.
	Settled(found State) State
}

// A Merger can take gpuadm's part out of a state that was changed outside gpuadm since.
type Merger interface {
	Thing
	// TakeOut returns found without gpuadm's change from before to after, part by part. left names, in one clause each, gpuadm's parts
	// that stay, because they were changed outside gpuadm since. A part that is missing counts as taken out; found itself is not
	// empty. It fails only where it cannot tell the parts.
	TakeOut(v host.View, found, before, after State) (rest State, left []string, err error)
}

// A Prover has a change verified before anything is touched: by the daemon that will read the file. found is the state without
// gpuadm's earlier changes: a changed spec may drop one of them, and that is no fault.
type Prover interface {
	Thing
	Prove(ctx context.Context, v host.View, found, after State) error
}

// A Breaker says what a change interrupts now, and which processes that affects. The engine asks it for every change, those of undo
// and of a shrunk spec included: the journal's answer may be out of date.
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
	Breaks  []string // what making it interrupts: restart-runtime, restart-kubelet, pause-services, stop-containers, stop-clients, lose-partitions, reset-gpu, reboot
	Keeps   string   // why undo does not revert it
	Leaves  string   // what undo cannot remove elsewhere

	// AsFound gives To the state found, gpuadm's earlier changes included: the least disturbing target depends on it.
	AsFound bool
	// Releases stops managing what the stage made earlier: it has another owner now, and gpuadm only verifies it.
	Releases bool

	// Clients names for each of the breaks the processes that it affects, where that is more precise than all that hold a GPU.
	Clients map[string][]string
}

// A Stage names one part of the bootstrap and says what it wants. Wants is pure.
type Stage struct {
	Name  string // "runtime"
	About string // "points the container engine at the NVIDIA runtime"
	Wants func(spec.Spec, facts.Facts) ([]Want, error)
	Needs func(spec.Spec) facts.Needs // facts that cost more, for its wants; nil: none
	// Proves names an earlier stage that only this stage can verify. If this stage fails, gpuadm rolls back that stage too, and the
	// stage that it proves in turn. When their changes are undone, the Settlers of this stage settle again.
	Proves string
	// Whole says that the stage speaks for the whole machine: it is made only where all stages before it in the sequence are
	// converged, also those that the operator did not select.
	Whole bool
	// Holds says that an apply makes nothing after this stage while something in it waits.
	Holds bool
	// Notes tells the operator what no want says: in sentences, without a full stop. nil: nothing.
	Notes func(host.View, spec.Spec, facts.Facts) []string
}

// A Change is one line of a plan. It is data: printed, journalled, reversed.
type Change struct {
	Stage     string    `json:"stage"`
	Section   string    `json:"section,omitempty"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Reads     []string  `json:"reads,omitempty"` // of a Reader
	Form      string    `json:"form,omitempty"`  // of a Formed thing
	Before    State     `json:"before"`
	After     State     `json:"after"`
	Why       string    `json:"why,omitempty"`
	Deferred  string    `json:"deferred,omitempty"` // until when: "first boot", "once the driver answers"
	When      host.When `json:"when,omitempty"`     // the same for a program
	Breaks    []string  `json:"breaks,omitempty"`
	Keeps     string    `json:"keeps,omitempty"`
	Leaves    string    `json:"leaves,omitempty"`
	Left      []string  `json:"left,omitempty"`      // gpuadm's parts that stay, since they were changed outside gpuadm
	Drawn     bool      `json:"drawn,omitempty"`     // a dependency of another change: only undo reverts it
	Settles   bool      `json:"settles,omitempty"`   // the thing is a Settler: it has no Before to restore
	Unsettles []Ref     `json:"unsettles,omitempty"` // what must settle after this, and after its undo
	Unsure    bool      `json:"unsure,omitempty"`    // in a compacted journal: of a run that was cut short, which may not have made it
	// Clients are the processes that each of the breaks affects.
	Clients map[string][]string `json:"clients,omitempty"`
	Diff    string              `json:"diff,omitempty"`    // unified diff of the bytes, secrets masked; not journalled
	Cannot  string              `json:"cannot,omitempty"`  // why it cannot be made
	Because []string            `json:"because,omitempty"` // more about Cannot
	Try     []string            `json:"try,omitempty"`     // what to do about Cannot, or Waits
	Waits   string              `json:"waits,omitempty"`   // what it waits for that comes by itself or from others; Deferred says it shorter
}

// String is the change's thing in two words.
func (c Change) String() string { return c.Kind + " " + c.Name }

// A Ref is what builds a Thing again.
type Ref struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Reads []string `json:"reads,omitempty"` // the files of a Reader
	Form  string   `json:"form,omitempty"`  // in which form a Formed thing is; "" in journals of a gpuadm that did not note it
}

func (c Change) ref() Ref { return Ref{c.Kind, c.Name, c.Reads, c.Form} }

func refOf(t Thing) Ref {
	r := Ref{Kind: t.Kind(), Name: t.Name()}
	if reader, ok := t.(Reader); ok {
		r.Reads = reader.Reads()
	}
	if formed, ok := t.(Formed); ok {
		r.Form = formed.Form()
	}
	return r
}

// key is what tells things apart, and can be compared. A thing in another form is the same thing.
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
