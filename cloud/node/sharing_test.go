// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// With [sharing] the number that a device plugin offers is compared with it, also where none is waited for: one that was configured
// otherwise offers another. A node without a device plugin is ready.
func TestSharingCompared(t *testing.T) {
	for _, x := range []struct{ sharing, offers, waits string }{
		{"time_slicing = 4\n", "8", ""},
		{"mps = 4\n", "8", ""},
		{"time_slicing = 4\n", "2", "2 of 8 nvidia.com/gpu"},
		{"mps = 4\n", "2", "2 of 8 nvidia.com/gpu"},
		{"", "8", "8 of 2 nvidia.com/gpu"},
		{"time_slicing = 4\n", "", ""},
		{"time_slicing = 4\n", "0", ""},
	} {
		a := apiFixture(t, apiSpec+"[sharing]\n"+x.sharing)
		name := "nvidia.com/gpu"
		if x.offers == "" {
			name = ""
		}
		offers(a, a.BootID(), name, x.offers)
		a.Advance(time.Minute)
		_, err := a.engine().Apply(a.ctx, a)
		if x.waits == "" && err != nil || x.waits != "" && (!trouble.Passes(err) || !strings.Contains(err.Error(), x.waits)) {
			t.Errorf("%q, of which %q are offered: %v; want %q", x.sharing, x.offers, err, x.waits)
		}
	}
	a := apiFixture(t, apiSpec)
	offers(a, a.BootID(), "nvidia.com/gpu", "8")
	a.Advance(time.Minute)
	if _, err := a.engine().Apply(a.ctx, a); err != nil {
		t.Errorf("without [sharing]: %v", err)
	}
}
