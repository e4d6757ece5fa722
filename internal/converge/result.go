// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Result says how an apply or undo ended.
type Result struct {
	Run      string   `json:"run,omitempty"`      // "" if it had nothing to do
	Restores bool     `json:"restores,omitempty"` // undo of the run would restore something
	Made     []Change `json:"made,omitempty"`
	Deferred []Line   `json:"deferred,omitempty"` // what waits, or is unknown: for the last line
	Left     []Line   `json:"left,omitempty"`     // undo: what stays
	Damaged  []int    `json:"damaged,omitempty"`  // undo: lines of the journal that could not be read
	Undone   []Change `json:"undone,omitempty"`   // by an unattended apply that has finished a cut undo
	Held     string   `json:"held,omitempty"`     // the undo that holds unattended applies
	Newer    string   `json:"newer,omitempty"`    // the newer gpuadm to which an unattended apply left all
	Reboot   string   `json:"reboot,omitempty"`   // why a reboot is needed
	Changed  int      `json:"changed,omitempty"`  // how many things are not as before the run
	Stage    string   `json:"stage,omitempty"`    // where it ended with an error, or cannot continue
}

// Unknown counts the things whose state could not be read.
func (r Result) Unknown() (count int) {
	for _, c := range r.Deferred {
		if c.Unknown != "" {
			count++
		}
	}
	return count
}

// waitsForReboot says whether the apply has changes that a reboot completes.
func (r Result) waitsForReboot() bool {
	return r.Reboot != "" || slices.ContainsFunc(r.Deferred, isAfterReboot)
}

func isAfterReboot(c Line) bool { return c.When == host.AfterReboot }
