// SPDX-License-Identifier: Apache-2.0

package converge

// An Outcome compares a machine with its spec. Each command ends by it: its exit code, its last
// sentence, and whether kubelet may start.
type Outcome string

// The outcomes. The last that applies counts.
const (
	EndsConverged Outcome = "converged" // all that the spec asks for is so
	EndsDeferred  Outcome = "deferred"  // the rest waits for an event that is named
	EndsReboot    Outcome = "reboot"    // the rest takes effect after a reboot
	EndsWaiting   Outcome = "waiting"   // the rest waits for another program: not yet
	EndsPending   Outcome = "pending"   // an apply would make changes
	EndsUnknown   Outcome = "unknown"   // some state could not be read
	EndsCannot    Outcome = "cannot"    // some changes cannot be made
)
