// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/joins"
)

// TestLeaving begins nothing on a machine that goes, and ends with "try again" only where it comes back by itself.
func TestLeaving(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 7, 0, 0, time.UTC)
	for _, c := range []struct {
		what   string
		at     time.Time
		says   string // "": nothing
		passes bool
	}{
		{"terminate", at, "takes this machine away at 2026-02-03T04:07:00Z", false},
		{"preempt", time.Time{}, "takes this machine away at any moment", false},
		{"stop", at, "stops this machine at 2026-02-03T04:07:00Z", false},
		{"hibernate", at, "stops this machine at 2026-02-03T04:07:00Z", false},
		{"redeploy", at, "restarts this machine on other hardware at 2026-02-03T04:07:00Z", true},
		{"reboot", at, "restarts this machine at 2026-02-03T04:07:00Z", true},
		{"rebalance", at, "", false},
		{"maintenance", at, "", false},
		{"freeze", at, "", false},
	} {
		err := Leaving(facts.Facts{Instance: &instance.Instance{Cloud: "azure", Notice: &instance.Notice{What: c.what, At: c.at}}})
		if (err != nil) != (c.says != "") || trouble.Passes(err) != c.passes || err != nil && err.Error() != "cannot begin: Azure "+c.says {
			t.Errorf("%q: %v", c.what, err)
		}
	}
	if Leaving(facts.Facts{}) != nil || Leaving(facts.Facts{Instance: &instance.Instance{Cloud: "aws"}}) != nil {
		t.Error("who was not asked says nothing")
	}
}

// TestAskLeavingAzure asks Azure, which knows its machines by other names than they have themselves.
func TestAskLeavingAzure(t *testing.T) {
	n := joins.Recorded(t, "aks-ubuntu2204", nil)
	cloud := &cloudfake.Fake{Machine: cloudfake.Machine{
		ID: "5f2b7a0e-0000-4000-8000-000000000001", Type: "Standard_ND96isr_H100_v5", Region: "eastus", Name: "aks-gpu-12345678-vmss_0", Spot: true,
	}}
	n.Serve("169.254.169.254", cloud.Azure())
	f, err := facts.Gather(t.Context(), n, facts.Needs{})
	if err != nil {
		t.Fatal(err)
	}
	if err := new(Session).AskLeaving(t.Context(), n.View(), f); err != nil {
		t.Error(err)
	}
	cloud.Machine.Events = `{"Events":[{"EventType":"Preempt","Resources":["aks-gpu-12345678-vmss_0"],"NotBefore":"Tue, 03 Feb 2026 04:07:00 GMT"}]}`
	if err := new(Session).AskLeaving(t.Context(), n.View(), f); err == nil || !strings.Contains(err.Error(), "Azure takes this machine away at 2026-02-03T04:07:00Z") {
		t.Error(err)
	}
}
