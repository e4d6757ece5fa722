// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import "time"

// An Event tells what the engine does while it does it. `apply -o json` prints one a line.
type Event struct {
	Time   time.Time `json:"time"`
	Run    string    `json:"run,omitempty"`
	Stage  string    `json:"stage,omitempty"`
	What   What      `json:"what"`
	Change *Change   `json:"change,omitempty"`
	Text   string    `json:"text,omitempty"`
	Millis int64     `json:"ms,omitempty"` // how long it took, in milliseconds
}

// What an event is about.
type What string

// The events, in the order a run has them.
const (
	Began   What = "began"   // a run; Text says if it goes on with an unfinished one
	Stands  What = "stands"  // a stage has nothing to do; Text counts its things
	Making  What = "making"  // a change is about to be made
	Made    What = "made"    // and was made and looked at again
	Waiting What = "waiting" // what is being made waits for another process: Text says for which, and how long yet
	Waits   What = "later"   // a change cannot be made yet
	Undone  What = "undone"  // a change was put back
	Kept    What = "kept"    // a change stays: undo cannot take it back
	Left    What = "left"    // a change stays: someone else changed it since
	Remains What = "remains" // what no undo needs any more could not be cleared away; Text says why
	Healed  What = "healed"  // a power cut had torn the journal's last line; Text says which
	Damaged What = "damaged" // at the end of a run: lines of the journal cannot be read; Text says which, and what to do
	Unkept  What = "unkept"  // what gets replaced could not be kept, and the run goes on; Text says which, and why
	Held    What = "held"    // nothing is done: an undo holds
	Reboots What = "reboot"  // the machine must reboot before the run goes on
	Failed  What = "failed"  // a change could not be made
	Ended   What = "ended"   // the run; Text is ok or failed
	Nothing What = "nothing" // nothing to do
)
