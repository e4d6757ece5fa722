// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A kind of things implements those of the interfaces in this file that apply to it.

// A Stored thing's State names bytes by their SHA-256. The engine keeps the bytes in a folder next
// to the journal, and shows them as a diff.
type Stored interface {
	Thing
	// Bytes returns what a state names, from memory or from the blobs; nil for "".
	Bytes(host.View, State) ([]byte, error)
	// Digest returns the SHA-256 in a state, in hex; "" if it names no bytes.
	Digest(State) string
}

// A Drawn thing can draw a change: the slices that the partitions of a GPU take.
type Drawn interface {
	Thing
	// Draw returns lines that begin with "-" for what goes, "+" for what comes, and " " for what
	// stays; "" for a change that it cannot draw.
	Draw(ctx context.Context, v host.View, before, after State) string
}

// A Batch is made together with all other things of its kind in its stage: packages in one
// transaction, labels in one PATCH.
type Batch interface {
	Thing
	MakeAll(context.Context, host.Host, []Change) error
}

// A Resolver is a Batch whose changes bring further changes of their kind: a package brings its
// dependencies.
type Resolver interface {
	Batch
	// Resolve returns the pending changes, with what To left open filled in, and the further
	// changes that making them brings. The error is a host.Later if that cannot be known yet.
	Resolve(ctx context.Context, v host.View, pending []Change) ([]Change, error)
	// Lacks returns the changes of an undo that cannot be made, because their Before is no longer
	// available; Lost has the reason.
	Lacks(ctx context.Context, v host.View, pending []Change) ([]Change, error)
}

// A Chooser is a Resolver that makes some things only where they can be had: an optional part of a
// driver; and that removes what it made once nothing needs it. Only a Resolver knows whether that
// is so, and a converged machine asks none, so the engine shows a Chooser what earlier runs made.
type Chooser interface {
	Resolver
	// Chosen returns the want of a thing that earlier runs made as a dependency, by their first and
	// their last change to it; ok is false where nothing is wanted of it.
	Chosen(first, last Change) (w Want, ok bool)
}

// A Follower comes after all other things of its stage, in undo too, and has no Before: a daemon
// whose files have changed. Its methods are pure.
type Follower interface {
	Thing
	Affected(found State, by Change) State // its state after another change
	Current(found State) State             // its desired state
}

// A Sweeper is a Follower that stops something while it is made: a module's clients, and the
// module. Undo restores nothing of a Follower, so that it would leave stopped what a killed run
// has stopped.
type Sweeper interface {
	Follower
	// Sweep starts again what a killed change from the state before has stopped, and reports
	// whether it has found such.
	Sweep(ctx context.Context, h host.Host, before State) (found bool, err error)
}

// A Perishable thing loses its state when a Follower is made: the driver forgets partitions when
// its module is loaded again. The journal keeps the state from before each run, so that an undo and
// a roll-back restore it after that Follower. Its TakeOut returns before where all that is missing
// is what the Follower takes away.
type Perishable interface {
	Merger
	// Outlasts reports whether the thing still has the state once the Follower is made. It is pure.
	Outlasts(state State, made Ref) bool
}

// A Supplier is a Follower that a Resolver asks: the lists of what repositories hold. Undo first
// restores the files that affect the Supplier, then what a Resolver gets from it, and makes the
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

// A Leaver knows what an undo has to leave, because it needs a right that this machine has no more.
type Leaver interface {
	Thing
	// Leaves says why an undo leaves the thing in the state found, and how an operator brings it to
	// the state to; "" if the undo can make the change.
	Leaves(ctx context.Context, v host.View, found, to State) string
}

// A change of a Finisher that undo does not revert, and that was cut short, is finished by undo.
type Finisher interface {
	Thing
	Finishes()
}

// A Partial thing has parts of its state that gpuadm did not change and that others change as they
// work: a unit that gpuadm enabled, and that a boot started. Such a change is not a drift.
type Partial interface {
	Thing
	// SamePart reports whether what gpuadm changed from before to after is so in found.
	SamePart(before, after, found State) bool
}

// A Validator has the daemon that will read a file validate a change before anything is touched.
// found is without gpuadm's earlier changes. Undo does not ask a Validator.
type Validator interface {
	Thing
	Validate(ctx context.Context, v host.View, found, after State) error
}

// A Guarded thing may be protected by another tool: then an operator has to allow its change. left
// is the state in which gpuadm last left the thing; "" if gpuadm never changed it. Guards is pure,
// and returns "" where nothing protects the thing.
type Guarded interface {
	Thing
	Guards(found, left, after State) (allow, who string)
}

// A Disruptor names what a change interrupts now, and the processes that each break affects. Undo
// asks it too: the journal's answer may be out of date.
type Disruptor interface {
	Thing
	Breaks(
		ctx context.Context, v host.View, before, after State,
	) (breaks []string, clients map[string][]string, err error)
}

// A DisruptorBeside is a Follower that interrupts less where a run makes other changes too: undo
// destroys gpuadm's partitions before it unloads the module, or restores the earlier ones after it.
type DisruptorBeside interface {
	Disruptor
	// BreaksBeside is Breaks where the run makes the other changes too, before the Follower
	// or after it.
	BreaksBeside(
		ctx context.Context, v host.View, before, after State, others []Change,
	) (breaks []string, clients map[string][]string, err error)
}

// DoesNotStart is what Make returns where a daemon would not start again with its present files, or
// where its program could not judge them. gpuadm has not touched the daemon.
type DoesNotStart struct {
	Runs bool  // the daemon runs, with what it loaded when it started
	Down State // the state of this daemon when it should run and does not
	Err  error
}

func (d DoesNotStart) Error() string { return d.Err.Error() }

func (d DoesNotStart) Unwrap() error { return d.Err }
