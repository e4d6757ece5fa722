// SPDX-License-Identifier: Apache-2.0

package trouble

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

type busy bool

func (busy) Error() string { return "busy" }
func (b busy) Waits() bool { return bool(b) }

func TestPasses(t *testing.T) {
	wait := Wait{For: "the API server"}
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"nothing", nil, false},
		{"a plain error", errors.New("no"), false},
		{"a wait", wait, true},
		{"a wrapped wait", fmt.Errorf("stage: %w", wait), true},
		{"an error that says so", &Error{Passing: true}, true},
		{"an error leaves it to its cause", &Error{Err: wait}, true},
		{"an error without a cause, beside a wait", errors.Join(&Error{What: "in use"}, wait), true},
		{"an error that says no, before a wait", errors.Join(busy(false), wait), false},
		{"another error that says so", fmt.Errorf("stage: %w", busy(true)), true},
	} {
		check.Equal(t, Passes(tt.err), tt.want, "%s:", tt.name)
	}
}
