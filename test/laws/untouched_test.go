// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestNothingTouchedIsTrue: code that refuses says that nothing was touched, as far as that code
// knows. No apply and no undo says so after the run has changed anything, whichever touch is
// refused.
func TestNothingTouchedIsTrue(t *testing.T) {
	for name, refusal := range map[string]*trouble.Error{
		"for good": {What: "cannot make it", Undone: []string{trouble.NothingTouched}},
		"for a while": {
			What:   "cannot make it yet",
			Undone: []string{trouble.NothingTouched},
			Err:    trouble.Wait{For: "it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
				straight := m.boot(t)
				if apply(t, straight, e()).Run == "" {
					return
				}
				touches := straight.Touches()

				for _, at := range sample(t, touches, 3) {
					n := m.boot(t)
					n.Fail(at, refusal)
					saysTruth(t, n, func() error {
						_, err := e().Apply(context.Background(), n)
						return err
					})
				}

				undone := m.boot(t)
				apply(t, undone, e())
				from := undone.Touches()
				undo(t, undone, e(), "")
				for _, at := range sample(t, undone.Touches()-from, 3) {
					n := m.boot(t)
					apply(t, n, e())
					n.Fail(from+at, refusal)
					saysTruth(t, n, func() error {
						_, err := e().Undo(context.Background(), n, "", nil)
						return err
					})
				}
			})
		})
	}
}

// saysTruth runs a command that may fail, and compares what it says with the machine.
func saysTruth(t *testing.T, n *simhost.Node, command func() error) {
	t.Helper()
	before := tree(n)
	err := command()

	var told *trouble.Error
	if !errors.As(err, &told) || !slices.Contains(told.Undone, trouble.NothingTouched) {
		return
	}
	check.That(t, len(told.Undone) == 1, "says that nothing was touched, and what was undone: %q", told.Undone)
	check.Equal(t, tree(n), before, "says that nothing was touched: %v; the machine", err)
}
