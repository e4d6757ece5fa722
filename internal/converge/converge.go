// SPDX-License-Identifier: Apache-2.0

// Package converge is the engine: it brings a machine to a desired state, and back.
//
// A Stage is a pure list of Wants. A Want is a Thing and its desired state. A Thing can be looked
// at and made. A Change is a Thing's Before and After. Plan, diff, no-op, verification, undo,
// resume and drift are derived from these four words, here, once, for every stage there is. The
// engine knows no kind of thing by name.
package converge

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A State is the state of one thing, as canonical text; "" means it is not there. The engine
// compares, journals and prints it. Only its own kind takes it apart.
type State string

// A Thing is one part of a machine whose state can be looked at and made: the smallest unit that
// gpuadm owns, undoes and reports.
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
	Clients map[string][]string // by break: the processes that it affects; all that hold a GPU, if the break is not in it
	Keeps   string              // why undo does not revert it
	Leaves  string              // what undo cannot remove elsewhere
	Brings  []string            // kernel modules that making it also installs or removes: those in a package

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
	Verifies string                                           // an earlier stage that only this one verifies: they are rolled back together, and undoing it affects this one's Followers
	Whole    bool                                             // gpuadm makes it only where all stages before it are converged
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
	Brings     []string            `json:"brings,omitempty"`     // kernel modules that making it installs or removes
	Left       []string            `json:"left,omitempty"`       // gpuadm's parts that stay, since they were changed outside gpuadm
	Dependency bool                `json:"dependency,omitempty"` // a dependency of another change: only undo reverts it
	Follows    bool                `json:"follows,omitempty"`    // the thing is a Follower: it has no Before to restore
	Affects    []Ref               `json:"affects,omitempty"`    // the Followers that the change affects, and its undo too
	Unsure     bool                `json:"unsure,omitempty"`     // of a run that was cut short, which may not have made it
	Diff       string              `json:"diff,omitempty"`       // unified diff of the bytes, secrets masked; not journalled
	Reason                         // why it is not made now; the zero Reason: it is
}

// Home is the folder that holds the journal and the blobs.
const Home = "/var/lib/gpuadm"

// A kind implements those of the interfaces below that apply to it.

// A Stored thing's State names bytes by their SHA-256. The engine keeps them beside the journal and
// shows them as a diff.
type Stored interface {
	Thing
	Bytes(host.View, State) ([]byte, error) // what a state names, from memory or from the blobs; nil for ""
	Digest(State) string                    // the SHA-256 by which it names them, in hex; "" for none
}

// A Batch is made together with its mates of the same kind and stage: packages in one transaction,
// labels in one PATCH.
type Batch interface {
	Thing
	MakeAll(context.Context, host.Host, []Change) error
}

// A Resolver is a Batch whose changes bring further changes of their kind: a package brings its
// dependencies.
type Resolver interface {
	Batch
	// Resolve returns the pending changes, with what To left open filled in, and the further
	// changes that making them brings; or host.Later if that cannot be known yet.
	Resolve(ctx context.Context, v host.View, pending []Change) ([]Change, error)
	// Lacks returns those changes of an undo that cannot be made, since their Before is not
	// available any more; Lost has the reason.
	Lacks(ctx context.Context, v host.View, pending []Change) ([]Change, error)
}

// A Follower comes after all other things of its stage, in undo too, and has no Before: a daemon
// whose files have changed. Its methods are pure.
type Follower interface {
	Thing
	Affected(found State, by Change) State // its state after another change
	Current(found State) State             // its desired state
}

// A Supplier is a Follower that a Resolver asks: the lists of what repositories hold. Undo restores
// first the files that affect the Supplier, then what a Resolver gets from it, and makes the
// Supplier current last.
type Supplier interface {
	Follower
	Supplies()
}

// A Merger can take gpuadm's part out of a state that was changed outside gpuadm since. Any other
// thing belongs to gpuadm as a whole.
type Merger interface {
	Thing
	// TakeOut returns found without the change from before to after, part by part. left names, in
	// one clause each, gpuadm's parts that stay, because they were changed outside gpuadm since. A
	// part that is missing counts as taken out. found is never empty. TakeOut fails only where it
	// cannot tell the parts apart.
	TakeOut(v host.View, found, before, after State) (rest State, left []string, err error)
}

// A Validator has the daemon that will read a file validate a change before anything is touched.
// found is without gpuadm's earlier changes. Undo does not ask a Validator.
type Validator interface {
	Thing
	Validate(ctx context.Context, v host.View, found, after State) error
}

// A Guarded thing may be protected by another tool: then an operator has to allow its change. left
// is the state in which gpuadm last left the thing; "" if it never changed it. Guards is pure.
type Guarded interface {
	Thing
	Guards(found, left, after State) (allow, who string) // "" where nothing protects it
}

// A Disruptor names what a change interrupts now. Undo asks it too: the journal's answer may be out
// of date.
type Disruptor interface {
	Thing
	Breaks(ctx context.Context, v host.View, before, after State) (what []string, clients map[string][]string, err error)
}

// A Ref names a Thing, and is what builds it again.
type Ref struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Reads []string `json:"reads,omitempty"` // files that the thing depends on beside its name
	Form  string   `json:"form,omitempty"`  // in which form its bytes are, so that undo finds the same merger again
}

// String is the thing's kind and name.
func (r Ref) String() string { return r.Kind + " " + r.Name }

// key identifies a thing, and is comparable. The form is not in it: a thing in another form is the
// same thing.
type key struct{ kind, name, reads string }

func (r Ref) key() key { return key{r.Kind, r.Name, strings.Join(r.Reads, "\n")} }

// covers says that making r makes o too: it is the same thing, and r reads all files that o reads.
func (r Ref) covers(o Ref) bool {
	return r.Kind == o.Kind && r.Name == o.Name && !slices.ContainsFunc(o.Reads, func(name string) bool { return !slices.Contains(r.Reads, name) })
}

// An Event is the engine's report of what it does. `apply -o json` prints one a line.
type Event struct {
	Time   time.Time `json:"time"`
	Run    string    `json:"run,omitempty"`
	Stage  string    `json:"stage,omitempty"`
	What   What      `json:"what"`
	Change *Change   `json:"change,omitempty"`
	Text   string    `json:"text,omitempty"`
	Undoes []string  `json:"undoes,omitempty"`   // of a run that began: the runs that it undoes, oldest first
	Count  int       `json:"count,omitempty"`    // and how many changes it then has to make
	Millis int64     `json:"ms,omitempty"`       // how long it took, in milliseconds
	Usual  int64     `json:"usual_ms,omitempty"` // of a change that is being made: how long one like it took in an earlier run
	Took   Times     `json:"took,omitempty"`     // of a run that ended
}

// What an event is about.
type What string

// The events, in the order a run has them.
const (
	Began        What = "began"       // a run; Text says if it continues an unfinished one
	AllConverged What = "converged"   // a stage has nothing to do; Text counts its things
	Making       What = "making"      // gpuadm is about to make a change
	Made         What = "made"        // gpuadm has made the change, and has verified it
	Waiting      What = "waiting"     // a Make waits for another process: Text names it, and says for how long
	Deferred     What = "deferred"    // a change waits for an event that it names
	Undone       What = "undone"      // undo has reverted a change
	RolledBack   What = "rolled back" // a stage has failed, and gpuadm has reverted a change of it
	Kept         What = "kept"        // a change stays: undo cannot revert it
	Left         What = "left"        // a change stays: it was changed outside gpuadm since
	Remains      What = "remains"     // gpuadm could not remove a file that no undo needs any more; Text says why
	Healed       What = "healed"      // a power cut had torn the journal's last line; Text says which
	Damaged      What = "damaged"     // at the end of a run: lines of the journal cannot be read; Text says which, and what to do
	Unkept       What = "unkept"      // gpuadm could not keep a copy of what it replaces, and continues; Text says which, and why
	Held         What = "held"        // nothing is done: an undo holds
	Newer        What = "newer"       // nothing is done: a newer gpuadm changed the machine last; Text is its version
	Reboots      What = "reboot"      // the machine must reboot before the run continues
	Failed       What = "failed"      // a change could not be made
	Ended        What = "ended"       // the run; Text is ok or failed
	Nothing      What = "nothing"     // nothing to do
)

type listener struct{}

// Listen returns a context in which Say has a listener.
func Listen(ctx context.Context, to func(what What, text string)) context.Context {
	return context.WithValue(ctx, listener{}, to)
}

// Say reports to the listener what a long Make is Waiting for, or what is Unkept. Without a
// listener it does nothing.
func Say(ctx context.Context, what What, text string) {
	if to, ok := ctx.Value(listener{}).(func(What, string)); ok {
		to(what, text)
	}
}

// A Reason is why a change is not made now: it cannot be, or it waits. The zero Reason: it can be
// made.
type Reason struct {
	Cannot   string    `json:"cannot,omitempty"`   // why it cannot be made
	Waits    string    `json:"waits,omitempty"`    // the event outside gpuadm that it waits for; Deferred is shorter
	Deferred string    `json:"deferred,omitempty"` // until when: "first boot", "once the driver answers"
	When     host.When `json:"when,omitempty"`     // the same as a code
	Because  []string  `json:"because,omitempty"`  // more about Cannot
	Try      []string  `json:"try,omitempty"`      // what to do about Cannot, or Waits
	Code     error     `json:"-"`                  // the trouble.Code of Cannot, or Waits; nil: it has none
}

// now says that nothing keeps the change from being made.
func (r Reason) now() bool { return r.Cannot == "" && r.Deferred == "" }

// reasonOf turns the error of a look or of To into a Reason; nil into the zero Reason.
func reasonOf(err error) Reason {
	later := host.Later{}
	switch {
	case err == nil:
		return Reason{}
	case errors.As(err, &later):
		return Reason{Deferred: later.Until, When: later.When}
	case trouble.Passes(err):
		r := cannot(err)
		r.Waits, r.Cannot, r.Deferred = r.Cannot, "", "once that has happened"
		if w := (trouble.Wait{}); errors.As(err, &w) && r.Try == nil {
			r.Try = w.Try
		}
		return r
	}
	return cannot(err)
}

// cannot is the Reason of a change that cannot be made, even where the error is one that passes.
func cannot(err error) Reason {
	t := troubleOf(err)
	r := Reason{Cannot: err.Error(), Because: t.Because, Try: t.Try}
	if code := trouble.Code(""); errors.As(err, &code) {
		r.Code = code
	}
	return r
}

// trouble is the reason as an error; nil if there is nothing for an operator to do.
func (r Reason) trouble() *trouble.Error {
	switch {
	case r.Cannot != "":
		return &trouble.Error{What: r.Cannot, Because: r.Because, Try: r.Try, Err: r.Code}
	case r.Waits != "":
		return &trouble.Error{What: r.Waits, Because: r.Because, Try: r.Try, Err: trouble.Wait{For: r.Waits, Err: r.Code}}
	}
	return nil
}

// troubleOf returns a new trouble.Error for an error; the caller may add lines to it.
func troubleOf(err error) *trouble.Error {
	t := &trouble.Error{What: err.Error(), Err: err}
	if inner := (*trouble.Error)(nil); errors.As(err, &inner) {
		t.Because, t.Undone, t.Try = slices.Clone(inner.Because), slices.Clone(inner.Undone), slices.Clone(inner.Try)
	}
	return t
}
