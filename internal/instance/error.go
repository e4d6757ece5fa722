// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

// Error says what is not known about the machine, why, and how to fix it.
type Error struct {
	What    string   `json:"what"` // cannot <verb> <object>: <cause>
	Because []string `json:"because,omitempty"`
	Try     []string `json:"try,omitempty"`
	Waiting bool     `json:"waiting,omitempty"` // waiting helps
	Err     error    `json:"-"`
}

func (e *Error) Error() string { return e.What }
func (e *Error) Unwrap() error { return e.Err }

// Waits says whether waiting helps: the same request may succeed later without any change.
func (e *Error) Waits() bool { return e.Waiting }
