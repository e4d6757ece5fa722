// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
)

// TestIncidents: each machine of a public report has the root causes that it had, and no other.
func TestIncidents(t *testing.T) {
	for name, i := range incident.All(t) {
		t.Run(name, func(t *testing.T) {
			check.That(t, i.Report != "", "it names no report")
			incidents(t, i.Want, i)
		})
	}
}

// incidents examines a machine with all these faults.
func incidents(t *testing.T, want string, all ...incident.Incident) Report {
	t.Helper()
	w := incident.Joined(t, true)
	for _, i := range all {
		w.Do(i)
	}
	n := w.Node()
	r := examine(t, fullView{n, w.Rooms})
	if got := codes(r); got != want {
		t.Errorf("root causes %q, want %q", got, want)
		for _, c := range r.Causes {
			t.Logf("%s %v explains %v", c.Code, c.Found, c.Explains)
		}
	}

	for _, c := range r.Causes {
		check.That(t, len(c.Commands) > 0, "%s has nothing to type", c.Code)
	}
	check.That(t, n.Touches() == 0, "doctor touched the machine %d times", n.Touches())
	for _, u := range r.Unread {
		check.That(t, slices.ContainsFunc(all, func(i incident.Incident) bool {
			return i.Unread == u.What
		}), "not checked: %v", u)
	}

	return r
}

// TestTwoFaults: a machine with two faults has both as root causes, or the one below the other.
func TestTwoFaults(t *testing.T) {
	pairs := incident.Pairs(t)
	check.That(t, len(pairs) >= 20, "only %d pairs", len(pairs))
	for name, p := range pairs {
		t.Run(name, func(t *testing.T) {
			r := incidents(t, p.Want, p.Of...)
			for _, code := range strings.Fields(p.Of[0].Want + " " + p.Of[1].Want) {
				check.That(t, slices.ContainsFunc(r.Causes, func(c Cause) bool {
					return c.Code == code || slices.ContainsFunc(c.Explains, func(f Found) bool {
						return f.Code == code
					})
				}), "%s is not found", code)
			}
		})
	}
}
