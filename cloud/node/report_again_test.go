// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// TestReportAgain: what is no reason to keep pods away when an apply fails is none when the next one fails too: the GPUs were found
// ready in this boot, there is no startup taint to swap, and pods run. After a reboot they are kept away, once and for all.
func TestReportAgain(t *testing.T) {
	fails := func(a *apiNode, why string) {
		t.Helper()
		a.Advance(time.Minute)
		must.OK(t, a.report(Outcome{Stage: "mig", Err: errors.New(why)}))
	}
	a := apiFixture(t, apiSpec)
	a.apply()
	for _, why := range []string{"x", "y", "y", "z"} {
		fails(a, why)
		if got := a.shown(); strings.Contains(got, "status-taint") || !strings.Contains(got, "False MigFailed "+why) {
			t.Errorf("failed with %s in the boot that it was ready in:\n%s", why, got)
		}
	}
	a.Reboot()
	for _, why := range []string{"z", "x", "x"} {
		fails(a, why)
		if got := a.shown(); strings.Count(got, "status-taint") != 1 || !strings.Contains(got, "False MigFailed "+why) {
			t.Errorf("failed with %s after a reboot:\n%s", why, got)
		}
	}
	a.Advance(time.Minute)
	a.apply()
	a.converged(a.mark())
}
