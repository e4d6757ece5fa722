// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"
)

// What mig-parted needs on the same fake library, recorded from an unmodified one: testdata/mig-parted.txt says how.
//
//go:embed testdata/mig-parted.txt
var parted string

// figures are calls of the driver's library, sessions with it, and changes of GPUs.
type figures struct{ calls, sessions, mutations int }

// recorded reads the figures by the name of their row.
func recorded(t *testing.T) map[string]figures {
	t.Helper()
	rows := map[string]figures{}
	for line := range strings.Lines(parted) {
		var f figures
		name, numbers, ok := strings.Cut(line, ":")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		if _, err := fmt.Sscan(numbers, &f.calls, &f.sessions, &f.mutations); err != nil {
			t.Fatalf("cannot read %q: %v", line, err)
		}
		rows[name] = f
	}
	return rows
}

// TestLabMIGBeside: gpuadm makes fewer calls and fewer changes than mig-parted, in at most three sessions, from one layout of eight
// GPUs to the next. Each session attaches GPUs that no process holds, which takes seconds on real ones.
func TestLabMIGBeside(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t).with(t, "A100-40:8")
	want := recorded(t)
	const next = `"3g.20gb" = 1, "2g.10gb" = 2`
	for _, row := range []struct {
		name, layout string
		exit         int
	}{
		{"off to seven", sevenths, 0},
		{"nothing to do", sevenths, 0},
		{"seven to mixed", mixed, 0},
		{"mixed to next", next, 0},
		{"next to seven", sevenths, 0},
		{"impossible", `"1g.5gb" = 3, "2g.10gb" = 2, "3g.20gb" = 1`, 1},
	} {
		n.fake("forget")
		n.wants(row.exit, layout(row.layout))
		s := n.dump()
		got := figures{mutations: s.Mutations}
		for name, count := range s.Counts {
			got.calls += count
			if strings.HasPrefix(name, "nvmlInit") {
				got.sessions += count
			}
		}
		theirs, ok := want[row.name]
		t.Logf("%-14s gpuadm %5d calls %3d sessions %4d changes %3d attached; mig-parted %5d calls %3d sessions %4d changes",
			row.name, got.calls, got.sessions, got.mutations, s.Attaches, theirs.calls, theirs.sessions, theirs.mutations)
		fewer := got.calls < theirs.calls && (got.mutations == 0 || got.mutations < theirs.mutations)
		if !ok || !fewer || got.sessions > 3 {
			t.Errorf("%s: %+v, mig-parted's %+v", row.name, got, theirs)
		}
	}
}
