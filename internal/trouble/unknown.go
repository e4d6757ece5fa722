// SPDX-License-Identifier: Apache-2.0

package trouble

import "errors"

// Unknown reports that the state of a thing could not be read, and why. What the spec wants of the
// thing is then neither converged nor pending: law 12 in ARCHITECTURE.md.
type Unknown struct {
	What string // the thing; "" where the cause names it
	Err  error  // the cause
}

func (u *Unknown) Error() string {
	if u.What == "" {
		return u.Err.Error()
	}
	return "cannot read the state of " + u.What + ": " + u.Err.Error()
}

func (u *Unknown) Unwrap() error { return u.Err }

// Concludes says that an error is what gpuadm concludes from what it has read: no
// reader has failed.
func Concludes(err error) bool {
	var t *Error
	if !errors.As(err, &t) || t.Passing {
		return false
	}
	_, isCode := t.Err.(Code)
	return t.Err == nil || isCode
}

// IsUnknown says whether an error is, or wraps, an Unknown.
func IsUnknown(err error) bool { return errors.As(err, new(*Unknown)) }
