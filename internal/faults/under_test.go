// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestUnder: the recovery that the driver asks for wins over the reset of an error's row, and takes
// nothing from an error that needs neither.
func TestUnder(t *testing.T) {
	resets, others := 0, 0
	for _, x := range faults.Xids() {
		check.Equal(t, x.Under("").Action(), x.Action(), "Xid %d, and the driver asks for nothing: ", x.Number)

		asked := x.Under("reboot").Action()
		if x.Remedy == "reset" {
			resets++
			isReboot := strings.Contains(asked, "sudo reboot") && !strings.Contains(asked, "--gpu-reset")
			check.That(t, isReboot, "Xid %d, and the driver asks for a reboot: %s", x.Number, asked)
		}

		if x.Remedy == "program" {
			others++
			check.Equal(t, asked, x.Action(), "Xid %d: ", x.Number)
		}
	}

	check.That(t, resets > 0 && others > 0, "%d errors with a reset, %d of programs", resets, others)
}

// TestSeverities: each check says what its fault takes.
func TestSeverities(t *testing.T) {
	for _, c := range faults.Checks() {
		known := slices.Contains([]string{"down", "part", "risk"}, c.Severity)
		check.That(t, known, "%s: severity %q", c.Code, c.Severity)
	}
}
