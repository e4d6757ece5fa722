// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBulletinTable wants of each branch one fix, of that branch, from two sources, and a fix for each branch that is supported.
func TestBulletinTable(t *testing.T) {
	c := Load()
	fixes := map[string]string{}
	for _, b := range c.Bulletins {
		_, err := time.Parse(time.DateOnly, b.Published)
		check.That(t, err == nil && b.ID != "" && len(b.Fixed) > 0, "%+v: %v", b, err)
		check.That(t, len(strings.Split(b.Where, "; ")) >= 2, "bulletin %s has one source", b.ID)
		for branch, version := range b.Fixed {
			check.That(t, hardware.InBranch(version, branch) && fixes[branch] == "", "bulletin %s has %s for branch %s, beside %q", b.ID, version, branch, fixes[branch])
			fixes[branch] = version
		}
	}
	for _, b := range (&plan{c: c}).alive() {
		check.That(t, fixes[strconv.Itoa(b)] != "", "no bulletin is known for branch %d", b)
	}
}

func TestUnfixed(t *testing.T) {
	c := Load()
	for _, x := range []struct{ version, day, want string }{
		{"580.178.04", "2026-11-22", ""},
		{"580.200.01", "2026-11-22", ""},
		{"580", "2026-11-22", ""}, // its newest is meant
		{"580.95.05", "2026-11-22", "it lacks the security fixes of NVIDIA's bulletin 5861 (2026-09-30), which 580.178.04 has"},
		{"570.172.08", "2026-11-22", "it lacks the security fixes of NVIDIA's bulletin 5747 (2026-01-28), which 570.211.01 has; branch 570 ended in 2026-02, and no fix will come for what was found since"},
		{"570.211.01", "2026-11-22", "driver branch 570 ended in 2026-02: no security fix will come for it"},
		{"570", "2026-11-22", "driver branch 570 ended in 2026-02: no security fix will come for it"},
		{"560.35.03", "2026-11-22", "driver branch 560 ended in 2025-08: no security fix will come for it"},
		{"595.91.07", "2027-03-31", ""},
		{"595.91.07", "2027-04-01", "driver branch 595 ended in 2027-03: no security fix will come for it"},
		{"595.91.07", "1970-01-01", ""}, // the clock is wrong
		{"700.1", "2026-11-22", ""},
		{"", "2026-11-22", ""},
	} {
		check.Equal(t, c.unfixed("it", x.version, x.day), x.want, "%s on %s:", x.version, x.day)
	}
}

func TestOutdated(t *testing.T) {
	d := New()
	c := Load()
	for _, x := range []struct {
		day, asked, loaded string
		want               []string
	}{
		{"2026-11-22", "580.178.04", "", nil},
		{"2026-11-22", "580.178.04", "580.178.04", nil},
		{"2026-11-22", "580.95.05", "580.95.05", nil}, // said of the one that is asked for
		{"2026-11-22", "580", "580.95.05", []string{"the loaded driver 580.95.05 lacks the security fixes of NVIDIA's bulletin 5861 (2026-09-30), which 580.178.04 has"}},
		{"2026-11-22", "570", "570.211.01", nil}, // said of the branch that is asked for
		{"2027-01-28", "580.178.04", "580.178.04", nil},
		{"2027-01-29", "580.178.04", "580.178.04", []string{"this release of gpuadm knows NVIDIA's security bulletins up to 2026-09-30: a newer release may know more"}},
	} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Day = x.day
		ch := must.Get(Choose(c, m, driver(x.asked)))(t)
		got := d.outdated(ch, facts.Facts{Day: x.day, Modules: &facts.Modules{Version: x.loaded}})
		check.That(t, slices.Equal(got, x.want), "%s of %s on %s: %q", x.loaded, x.asked, x.day, got)
	}
}
