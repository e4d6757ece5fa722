// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
)

// TestDoctorCode: the entry of each code is printed without a machine being asked, in what the page
// says of it.
func TestDoctorCode(t *testing.T) {
	n := incident.Joined(t, true).Node()
	squeezed := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	for _, entry := range doctor.Entries() {
		code, said := typedOn(t, n, "doctor "+strings.ToLower(entry.Code))
		check.That(t, code == 0, "%s: exit %d\n%s", entry.Code, code, said)
		for _, text := range []string{entry.Title, entry.Reads, entry.Interrupts, entry.Sources[0]} {
			if strings.Contains(text, "\u2063") {
				continue // it has a command, which is printed as typed
			}
			isThere := strings.Contains(squeezed(said), squeezed(text))
			check.That(t, isThere, "%s lacks %q:\n%s", entry.Code, text, said)
		}

		isTyped := !strings.ContainsAny(said, "{\u2063")
		check.That(t, isTyped, "%s is not as an operator types it:\n%s", entry.Code, said)
	}

	code, said := typedOn(t, n, "doctor DRV-999")
	check.That(t, code == exitUsage && strings.Contains(said, "no such code"), "exit %d\n%s", code, said)
	code, said = typedOn(t, n, "doctor GPU-011")
	check.That(t, code == 0 && strings.Contains(said, "Xid 79:"), "exit %d\n%s", code, said)
	check.That(t, n.Touches() == 0, "%d touches", n.Touches())
}
