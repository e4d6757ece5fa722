// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"testing"

	"github.com/gpuadm/gpuadm/internal/things"
)

// TestOlderLeavesTheMachine: of two versions on one machine, as of an image and of a DaemonSet, the newer one writes. The older one
// changes nothing: unattended it ends well, so that the gate opens and the newer one's pod can come; an operator gets an error.
// What a power cut has left open any version finishes.
func TestOlderLeavesTheMachine(t *testing.T) {
	const newer, older = "v1.10.0", "v1.9.0"
	for _, c := range []struct {
		what, first, then string
		unattended        bool
		made, fails       bool
	}{
		{"older, unattended", newer, older, true, false, false},
		{"older, by an operator", newer, older, false, false, true},
		{"newer", older, newer, true, true, false},
		{"the same", newer, newer, true, true, false},
		{"a build without a release", newer, "devel-0123456789ab", true, true, false},
		{"after a build without a release", "devel", older, true, true, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := node(t)
			one := engineOf(t, stage(things.Exact("/etc/one", nil, 0o644, "")))
			one.Version = c.first
			apply(t, n, one)
			two := engineOf(t, stage(things.Exact("/etc/one", []byte("2"), 0o644, "")))
			two.Version, two.Unattended = c.then, c.unattended
			res, err := two.Apply(context.Background(), n)
			b, _ := n.ReadFile("/etc/one")
			if made := string(b) == "2"; made != c.made || (err != nil) != c.fails || (res.Newer != "") != (!c.made && !c.fails) {
				t.Errorf("made %v, newer %q, error %v", made, res.Newer, err)
			}
			two.Stages = one.Stages // as the newer one made it
			if !c.made {
				if res, err := two.Apply(context.Background(), n); err != nil || res.Newer != "" {
					t.Errorf("a machine that is converged for the older one too: %v, newer %q", err, res.Newer)
				}
				if _, err := two.Undo(context.Background(), n, "", nil); err != nil {
					t.Errorf("undo by the older one: %v", err)
				}
				two.Unattended = false
				apply(t, n, two) // from now on the machine is the older one's
			}
		})
	}
}
