// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
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

// besideLayouts are a layout in each row of the table, as gpuadm writes it, and what gpuadm's exit status is.
var besideLayouts = []struct {
	name, layout string
	exit         int
}{
	{"off to seven", sevenths, 0},
	{"nothing to do", sevenths, 0},
	{"seven to mixed", mixed, 0},
	{"mixed to next", `"3g.20gb" = 1, "2g.10gb" = 2`, 0},
	{"next to seven", sevenths, 0},
	{"impossible", `"1g.5gb" = 3, "2g.10gb" = 2, "3g.20gb" = 1`, 1},
}

// measured is what a run asked of the driver.
func (n gpuNode) measured(run func()) figures {
	n.t.Helper()
	n.fake("forget")
	run()
	s := n.dump()
	f := figures{mutations: s.Mutations, attaches: s.Attaches}
	for name, count := range s.Counts {
		f.calls += count
		if strings.HasPrefix(name, "nvmlInit") {
			f.sessions += count
		}
	}
	return f
}

// theirs are the figures of mig-parted: those recorded, or where GPUADM_TEST_MIG_PARTED names its program, of a run beside gpuadm's. It is in
// no module proxy, so CI compares with the record.
func theirs(t *testing.T, n gpuNode) map[string]figures {
	t.Helper()
	rows := recorded(t)
	path := os.Getenv("GPUADM_TEST_MIG_PARTED")
	if path == "" {
		return rows
	}
	program := must.Get(os.ReadFile(path))(t)
	n.Put("/usr/local/bin/nvidia-mig-parted", string(program), 0o755)
	// It reads whether the kernel has the module, and on the PCI bus the fake GPUs with their memory regions.
	for _, g := range n.dump().GPUs {
		n.Must("sh", "-ec", `mkdir -p /run/bus; cp -r /sys/bus/pci/devices/0000:18:00.0 /run/bus/$1; cd /run/bus/$1; echo 0x0 0x0 0x0 >resource; echo 0x20b0 >device`, "sh", g.Address)
	}
	const sees = `mount --bind /run/bus /sys/bus/pci/devices; mount -t tmpfs none /proc; echo nvidia 1 0 - Live 0x0 >/proc/modules; exec "$@"`
	for _, row := range besideLayouts {
		n.Put("/root/parted.yaml", "version: v1\nmig-configs:\n  it: [{devices: all, mig-enabled: true, mig-devices: {"+strings.ReplaceAll(row.layout, " =", ":")+"}}]\n", 0o644)
		rows[row.name] = n.measured(func() {
			if r := n.Exec("unshare", "--mount", "sh", "-ec", sees, "sh", "nvidia-mig-parted", "apply", "-f", "/root/parted.yaml", "-c", "it"); r.Exit != row.exit {
				t.Errorf("mig-parted, %s: %s", row.name, r)
			}
		})
	}
	return rows
}

// TestLabMIGBeside: gpuadm makes fewer calls and fewer changes than mig-parted, in fewer sessions and at most three, and the driver takes
// less time for them, from one layout of eight GPUs to the next. Each session attaches GPUs that no process holds, which takes seconds on
// real ones.
func TestLabMIGBeside(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t).with(t, "A100-40:8")
	want := theirs(t, n)
	n = n.with(t, "A100-40:8")
	for _, row := range besideLayouts {
		got := n.measured(func() { n.wants(row.exit, layout(row.layout)) })
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
