// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Law 8, for a roll-back: a stage fails at a touch, and the power is cut at a touch of its roll-back. Then an apply ends in the tree
// of a straight run, and undo in the first tree. Where the restart of a daemon failed and its file was about to be restored, the next
// boot finds both as desired: an apply has nothing to make, and undo must still restore the file.
func TestPowerCutInARollBack(t *testing.T) {
	cuts := 0
	for _, c := range lawCases(t) {
		if c.wish.install || c.wish.needs != "" {
			continue
		}
		e := func() *converge.Engine { return c.wish.engine(t) }
		s := run(t, c.machine, e)
		for _, at := range sample(t, s.made, 4) {
			fail := func(cut int) *simhost.Node {
				n := c.boot(t)
				n.Fail(at, syscall.EIO)
				if cut > 0 {
					n.CutAt(cut)
				}
				_, _ = e().Apply(context.Background(), n)
				return n
			}
			touches := fail(0).Touches()
			for _, k := range sample(t, touches-at-1, 4) {
				cuts++
				for _, loss := range losses(k) {
					n := fail(at + 1 + k)
					if !n.Off() {
						t.Fatalf("%s: the power was not cut", c.name)
					}
					n.Boot(loss)
					byHand(t, s, n, fmt.Sprintf("%s, touch %d failed, power cut at touch %d of %d, %v", c.name, at, at+1+k, touches, loss))
				}
			}
		}
	}
	if cuts < 100 && !testing.Short() {
		t.Errorf("only %d cuts", cuts)
	}
}
