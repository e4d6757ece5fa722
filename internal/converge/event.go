// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"time"
)

// An Event is the engine's report of what it does. `apply -o json` prints one a line.
type Event struct {
	Time   time.Time `json:"time"`
	Run    string    `json:"run,omitempty"`
	Stage  string    `json:"stage,omitempty"`
	What   What      `json:"what"`
	Line   *Line     `json:"change,omitempty"`
	Text   string    `json:"text,omitempty"`
	Undoes []string  `json:"undoes,omitempty"`   // began: the runs that this run undoes, oldest first
	Count  int       `json:"count,omitempty"`    // began: how many changes the undo has to make
	Millis int64     `json:"ms,omitempty"`       // how long it took, in milliseconds
	Usual  int64     `json:"usual_ms,omitempty"` // making: the time of such a change in an earlier run
	Took   Times     `json:"took,omitempty"`     // ended: where the run's time went
}

// What an event is about.
type What string

// The events, in the order a run has them.
const (
	Began        What = "began"       // a run; Text says if it continues an unfinished one
	AllConverged What = "converged"   // a stage has nothing to do; Text counts its things
	Making       What = "making"      // gpuadm is about to make a change
	Made         What = "made"        // gpuadm has made the change, and has verified it
	Waiting      What = "waiting"     // a Make waits for another process: Text says for which, how long
	Deferred     What = "deferred"    // a change waits for an event that it names
	Unread       What = "unknown"     // the state of a thing could not be read; Line says why
	Undone       What = "undone"      // undo has reverted a change
	RolledBack   What = "rolled back" // a stage has failed, and gpuadm has reverted a change of it
	Kept         What = "kept"        // a change stays: undo cannot revert it
	Left         What = "left"        // a change stays: it was changed outside gpuadm since
	Remains      What = "remains"     // a file that no undo needs cannot be removed; Text says why
	Healed       What = "healed"      // what a cut run left is repaired: a torn line, stopped services
	Damaged      What = "damaged"     // lines of the journal cannot be read; Text says what to do
	Unkept       What = "unkept"      // no copy is kept of a replaced file or of the spec; Text says why
	Held         What = "held"        // nothing is done: an undo holds
	Newer        What = "newer"       // nothing is done: a newer gpuadm was here; Text is its version
	Reboots      What = "reboot"      // the machine must reboot before the run continues
	Failed       What = "failed"      // a change could not be made
	Ended        What = "ended"       // the run; Text is ok or failed
	Nothing      What = "nothing"     // nothing to do
)

// listenerKey is the context key of a listener.
type listenerKey struct{}

// Listen returns a context in which Say reports to listener.
func Listen(ctx context.Context, listener func(what What, text string)) context.Context {
	return context.WithValue(ctx, listenerKey{}, listener)
}

// Say reports to the listener what a long Make is Waiting for, or what is Unkept. Without a
// listener it does nothing.
func Say(ctx context.Context, what What, text string) {
	listener, ok := ctx.Value(listenerKey{}).(func(What, string))
	if ok {
		listener(what, text)
	}
}
