// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestFailedKeepsGuard: the taint of a failure that gpuadm has reported shuts the node: a further try, in this boot or the
// next, adds no startup taint beside it, and has no run of its own. Once the GPUs are ready neither taint is left.
func TestFailedKeepsGuard(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	a.converged(a.mark())
	all := a.facts.Driver.GPUs
	for boot := range 2 {
		a.Reboot()
		a.facts.Driver.GPUs = all[:1]
		for try := range 3 {
			a.Advance(time.Minute)
			a.sim.Requests()
			res, err := a.engine().Apply(a.ctx, a)
			must.That(t, err != nil, "boot %d, try %d: a GPU is lost and apply said nothing", boot, try)
			first := boot == 0 && try == 0
			if shown := a.shown(); !first && (len(res.Made) > 0 || strings.Contains(shown, "example.com/starting")) {
				t.Errorf("boot %d, try %d made %v:\n%s", boot, try, res.Made, shown)
			}
			must.OK(t, a.report(Outcome{Made: res.Made, Stage: res.Stage, Err: err}))
			if shown := a.shown(); strings.Contains(shown, "example.com/starting") || !strings.Contains(shown, failureTaint().Key) || a.condition()[:5] != "False" {
				t.Errorf("boot %d, after try %d:\n%s", boot, try, shown)
			}
		}
	}
	a.facts.Driver.GPUs = all
	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}
