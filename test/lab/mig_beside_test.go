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

// figures are calls of the driver's library, sessions with it, changes of GPUs, and GPUs that a session attached.
type figures struct{ calls, sessions, mutations, attaches int }

// charged is the time that the driver takes in seconds, at 100 ms a change and 1 s a GPU that is attached. It is counted and not waited
// for: a program's own time and a machine's load are not in it.
func (f figures) charged() float64 { return 0.1*float64(f.mutations) + float64(f.attaches) }

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
		if _, err := fmt.Sscan(numbers, &f.calls, &f.sessions, &f.mutations, &f.attaches); err != nil {
			t.Fatalf("cannot read %q: %v", line, err)
		}
		rows[name] = f
	}
	return rows
}

// TestLabMIGBeside: gpuadm makes fewer calls and fewer changes than mig-parted, in fewer sessions and at most three, and the driver takes
// less time for them, from one layout of eight GPUs to the next. Each session attaches GPUs that no process holds, which takes seconds on
// real ones.
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
		got := figures{mutations: s.Mutations, attaches: s.Attaches}
		for name, count := range s.Counts {
			got.calls += count
			if strings.HasPrefix(name, "nvmlInit") {
				got.sessions += count
			}
		}
		theirs, ok := want[row.name]
		const line = "%5d calls %3d sessions %4d changes %3d attached %6.1f s"
		t.Logf("%-14s gpuadm "+line+"; mig-parted "+line, row.name, got.calls, got.sessions, got.mutations, got.attaches, got.charged(),
			theirs.calls, theirs.sessions, theirs.mutations, theirs.attaches, theirs.charged())
		fewer := got.calls < theirs.calls && got.sessions < theirs.sessions && (got.mutations == 0 || got.mutations < theirs.mutations)
		if !ok || !fewer || got.sessions > 3 || got.charged() >= theirs.charged() {
			t.Errorf("%s: %+v, mig-parted's %+v", row.name, got, theirs)
		}
	}
}
