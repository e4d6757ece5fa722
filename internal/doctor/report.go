// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	_ "embed"
)

// Format is the version of the report's form.
const Format = 1

// Report is what doctor says of a machine.
type Report struct {
	Format int      `json:"format"`
	Host   string   `json:"host"`             // what machine this is, in a line
	Causes []Cause  `json:"causes"`           // root causes; none: no fault was found
	Unread []Unread `json:"unread,omitempty"` // what could not be checked
	Checks int      `json:"checks"`           // how many there are
	Notes  []Found  `json:"notes,omitempty"`  // what is no fault of the machine, and an operator should know
}

// Cause is a root cause: a fault that no other one explains.
type Cause struct {
	Code       string   `json:"code"`
	Title      string   `json:"title"`
	Found      []Found  `json:"found"`
	Meaning    string   `json:"meaning"`
	Explains   []Found  `json:"explains,omitempty"`
	Fix        string   `json:"fix"`
	Commands   []string `json:"commands,omitempty"`
	Interrupts string   `json:"interrupts"`
	NoRepair   string   `json:"noRepair,omitempty"` // why gpuadm repair cannot fix it
	Sources    []string `json:"sources"`
}

// Found is one fault that was found.
type Found struct {
	Code   string `json:"code,omitempty"`
	Object string `json:"object,omitempty"`
	What   string `json:"what"`
}

// Unread is a part of the machine that could not be read, so that its checks say nothing.
type Unread struct {
	What string `json:"what"`
	Why  string `json:"why"`
}
