// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/stages"
)

// TestExplainsAll asks for every name that explain offers to a person who has mistyped one.
func TestExplainsAll(t *testing.T) {
	for _, names := range [][]string{keyNames(), labelNames(), profileNames(), textNames(), {"0", "1", "2", "3", "4", "75"}} {
		if len(names) < 6 {
			t.Errorf("%d names only: %v", len(names), names)
		}
		for _, name := range names {
			if len(explained(name)) == 0 {
				t.Errorf("%s is not explained", name)
			}
		}
	}
	for _, c := range doctor.Checks() {
		if e := explained(c.Code); len(e) != 1 || e[0].What != c.Title || len(e[0].Try) == 0 {
			t.Errorf("%s is explained as %v", c.Code, e)
		}
	}
	for _, word := range []string{"", "x", "nvidia.com/x", "9g.9gb", "77", "driver.x"} {
		if e := explained(word); len(e) > 0 {
			t.Errorf("%q is explained as %v", word, e)
		}
	}
}

// TestRepairOrWhy: each code has a repair or says why not, in doctor, explain and repair.
func TestRepairOrWhy(t *testing.T) {
	for _, c := range doctor.Checks() {
		repairs := slices.ContainsFunc(stages.Repairs(), func(r stages.Repair) bool { return r.Code == c.Code })
		if repairs == (c.NoRepair != "") {
			t.Errorf("%s: it has a repair: %v, and why it has none: %q", c.Code, repairs, c.NoRepair)
		}
		if try := strings.Join(explained(c.Code)[0].Try, "\n"); !repairs && !strings.Contains(try, c.NoRepair) || c.RPM != "" && !strings.Contains(try, c.RPM) {
			t.Errorf("%s: %s", c.Code, try)
		}
		if !repairs && !strings.Contains(noRepair(c.Code).Error(), c.NoRepair) {
			t.Errorf("%s: repair says %v", c.Code, noRepair(c.Code))
		}
	}
	for _, code := range []string{"PKG-001", "PKG-003"} {
		if try := strings.Join(explained(code)[0].Try, "\n"); !strings.Contains(try, "Debian") || !strings.Contains(try, "dnf") {
			t.Errorf("%s: %s", code, try)
		}
	}
}
