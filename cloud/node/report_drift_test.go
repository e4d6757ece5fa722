// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/kube"
)

// TestReportDrift: drift is an Event without secrets, and no word against the GPUs: the condition stays.
func TestReportDrift(t *testing.T) {
	a := apiFixture(t, apiSpec)
	a.apply()
	before := a.shown()
	f := a.facts
	f.Live, f.BootID = true, a.BootID()
	err := ReportDrift(kube.Within(a.ctx, 0), new(Session), a, a.engine().Spec, f, "1 change pending: file /etc/x abcdef.0123456789abcdef")
	if want := "Warning Drift 1 change pending: file /etc/x (masked) gpuadm\n"; err != nil || a.told() != want {
		t.Errorf("%v: %s", err, a.told())
	}
	if a.shown() != before {
		t.Errorf("the Node was changed:\n%s", a.shown())
	}
}
