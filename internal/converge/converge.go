// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package converge is the engine: it brings a machine to a wanted state, and back.
//
// A Stage is a pure list of Wants. A Want is a Thing and how it shall stand. A Thing can be looked at and made.
// A Change is a Thing's Before and After. Plan, diff, no-op, verification, undo, resume and drift are derived from
// these four words, here, once, for every stage there is. The engine knows no kind of thing by name.
package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A State says how one thing stands, as canonical text; "" means it is not there.
// Text, so that it can be compared, journalled and read by code that does not know the kind.
type State string

// A Thing is one part of a machine whose state can be looked at and made.
type Thing interface {
	Kind() string                                   // "file"
	Name() string                                   // with Kind, enough to build the Thing again for undo; see Change.String
	Look(context.Context, host.View) (State, error) // never changes anything; host.Later where it cannot be looked at yet
	Make(context.Context, host.Host, State) error   // the same forwards and back; host.Reboot where it holds only after one
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

// A Leaver says what stays elsewhere, out of our reach, where undo takes away what stood like this; "" for nothing.
type Leaver interface {
	Thing
	Leaves(State) string
}

// A Merger can take our part out of what someone else has changed since.
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
	Breaks(ctx context.Context, v host.View, before, after State) (what, clients []string, err error)
}

// A Want is a thing and how it shall stand, as a pure and idempotent function of how it stands.
type Want struct {
	Thing
	To      func(found State) (State, error)
	Why     string   // one line, shown by plan
	Section string   // the spec's section that asks for it; "" = the stage's name
	Breaks  []string // what making it interrupts: restart-runtime, restart-kubelet, stop-clients, reset-gpu, reboot, leave-cluster
	Clients []string // whom that would hit, where it is known better than by who holds any GPU
	Keeps   string   // what undo cannot take back

	// AsFound has To go by how the thing stands, what we made earlier included: what disturbs least depends on it.
	AsFound bool
	// Releases lets go of what the stage made earlier: somebody else looks after it now, and only verifying is left to us.
	Releases bool
}

// A Stage names one part of the bootstrap and says what it wants. Wants is pure.
type Stage struct {
	Name  string // "runtime"
	About string // "points the container engine at the NVIDIA runtime"
	Wants func(spec.Spec, facts.Facts) ([]Want, error)
	Needs func(spec.Spec) facts.Needs // facts that cost more, for its wants; nil: none
	// Proves names an earlier stage whose changes show their worth only here: if this stage fails they are put back too, with
	// those of the stage that it proves in turn, and what settles here settles anew when they are undone.
	Proves string
	// Whole says that the stage speaks for the whole machine: it is looked at only where all stages of the sequence before it
	// stand, also those that were not asked for.
	Whole bool
	// Notes says what a person may want to know and no want says: in sentences, without a full stop. nil: nothing.
	Notes func(host.View, spec.Spec, facts.Facts) []string
}

// A Change is one line of a plan. It is data: printed, journalled, turned round.
type Change struct {
	Stage     string   `json:"stage"`
	Section   string   `json:"section,omitempty"`
	Kind      string   `json:"kind"`
	Name      string   `json:"name"`
	Before    State    `json:"before"`
	After     State    `json:"after"`
	Why       string   `json:"why,omitempty"`
	Later     string   `json:"later,omitempty"` // not before this: "first boot"
	Breaks    []string `json:"breaks,omitempty"`
	Clients   []string `json:"clients,omitempty"` // whom the breaks would hit
	Keeps     string   `json:"keeps,omitempty"`
	Drawn     bool     `json:"drawn,omitempty"`     // drawn along by its neighbours, not asked for: it goes back with undo only
	Taken     bool     `json:"taken,omitempty"`     // taken along by another change: Before and After are how it stood before that
	Settles   bool     `json:"settles,omitempty"`   // the thing settles: it has no Before to go back to
	Unsettles []string `json:"unsettles,omitempty"` // "KIND NAME" of what must settle after this, and after its undo
	Left      []string `json:"left,omitempty"`      // what of ours stays, because it was changed outside gpuadm since; not journalled
	Diff      string   `json:"diff,omitempty"`      // unified diff of the bytes, secrets masked; not journalled
	Cannot    string   `json:"cannot,omitempty"`    // why it cannot be made to stand
	Because   []string `json:"because,omitempty"`   // more about Cannot
	Try       []string `json:"try,omitempty"`       // what to do about Cannot, or Waits
	Waits     string   `json:"waits,omitempty"`     // what it waits for that comes by itself or from others; Later says it shorter
}

func (c Change) key() key { return key{c.Kind, c.Name} }

// String is the change's thing in two words. What a name says after " reads " serves to build the thing again, and is
// not for people.
func (c Change) String() string {
	name, _, _ := strings.Cut(c.Name, " reads ")
	return c.Kind + " " + name
}

type key struct{ kind, name string }

func keyOf(t Thing) key { return key{t.Kind(), t.Name()} }

// Home is the folder that holds the journal and the blobs.
const Home = "/var/lib/gpuadm"

// Engine converges one machine by one spec.
type Engine struct {
	Stages  []Stage                                            // the whole sequence, or the part asked for
	Before  []Stage                                            // the whole sequence, where a part is asked for; nil: Stages
	Spec    spec.Spec                                          //
	ThingOf func(kind, name string) (Thing, error)             // builds a thing again from the journal
	Clients func(context.Context, host.View) ([]string, error) // who holds the GPUs, for the breaks that would kill them
	Tell    func(Event)                                        // progress; may be nil
	Stop    <-chan struct{}                                    // closed: finish the current make, then stop; may be nil
	Version string                                             // of gpuadm, for the journal

	// May is asked before a stage touches anything: a machine that its cloud takes away soon begins nothing. nil: it may.
	May func(context.Context, host.View, facts.Facts) error

	Unattended bool     // a boot unit or DaemonSet calls: a hold is obeyed
	Yes        bool     // all breaks are allowed
	Allow      []string // these breaks are allowed

	cache  facts.Cache // versions found in binaries, which cost most to find out
	proven sync.Map    // changes that were judged, and how: a judge is asked once a run
}

// Trouble is an error that a person can act on.
type Trouble struct {
	What    string   // cannot <verb> <object>: <cause>
	Because []string // why, in more words
	Undone  []string // what was turned back
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

// forbidden returns the breaks of the changes that were not allowed, in their order.
func (e *Engine) forbidden(changes []Change) (list []string) {
	ok := map[string]bool{"restart-runtime": true, "restart-kubelet": true} // pods keep running
	for _, a := range append(e.Spec.Disruption.Allow, e.Allow...) {
		ok[a] = true
	}
	for _, c := range changes {
		for _, b := range c.Breaks {
			if c.Later == "" && !e.Yes && !ok[b] {
				ok[b] = true
				list = append(list, b)
			}
		}
	}
	return list
}

// ErrInUse reports that a change would take the GPUs from somebody who did not agree. It says nothing against the GPUs.
var ErrInUse = errors.New("the GPUs are in use")

// consent refuses changes that would take the GPUs from somebody who did not agree.
func (e *Engine) consent(ctx context.Context, v host.View, changes []Change) error {
	for _, what := range e.forbidden(changes) {
		var names, clients []string
		anybody := false
		for _, c := range changes {
			if c.Later == "" && slices.Contains(c.Breaks, what) {
				names, clients = append(names, c.String()), append(clients, c.Clients...)
				anybody = anybody || len(c.Clients) == 0
			}
		}
		if anybody && e.Clients != nil {
			holders, err := e.Clients(ctx, v)
			if err != nil {
				return fmt.Errorf("cannot find out who uses the GPUs: %w", err)
			}
			clients = append(clients, holders...)
		}
		if len(clients) > 0 {
			return &Trouble{
				What:    fmt.Sprintf("cannot go on: %s would %s, and %s", strings.Join(names, ", "), what, hits(what)),
				Because: clients,
				Try:     []string{"stop them, or run again with --allow " + what},
				Err:     ErrInUse,
			}
		}
	}
	return nil
}

// hits says why somebody has to agree to a break.
func hits(what string) string {
	if what == "leave-cluster" {
		return "pods run here"
	}
	return "the GPUs are in use"
}

// Stays is what Make returns when a thing of ours must stay because others have come to depend on it: a folder that
// holds their files. Undo leaves it and says so.
type Stays struct{ Why string }

func (s Stays) Error() string { return s.Why }

func (e *Engine) tell(ev Event) {
	if e.Tell != nil {
		e.Tell(ev)
	}
}
