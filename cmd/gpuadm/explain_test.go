// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/doctor"
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
