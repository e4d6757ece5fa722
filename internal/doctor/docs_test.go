// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "rewrite docs/doctor.md")

const docs = "../../docs/doctor.md"

// TestDocs compares docs/doctor.md with the table of checks.
func TestDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# gpuadm doctor

` + "`gpuadm doctor`" + ` examines any machine with NVIDIA GPUs, whether or not gpuadm has set it up. It changes nothing and needs no network.

- It prints root causes, each with one fix. Below a cause it lists the faults that the cause explains. Each check has a code;
  ` + "`gpuadm doctor CODE`" + ` prints the entry of that code, without a machine.
- It ends within two seconds, or as ` + "`--wait`" + ` says. Drivers, daemons, programs, disks and the API server have 1.5 seconds from its start to
  answer; doctor names what did not answer. A driver that starts one GPU after the other gets longer, as long as it makes progress.
- If kubelet runs, doctor asks the API server for this machine's Node, with kubelet's own identity.
- It names what it cannot read, or what does not answer, as not checked. It never guesses.
- If a program reports an error of a GPU that works, doctor prints a note, not a fault.

| exit code | meaning |
|---|---|
| 0 | no fault found |
| 3 | a fault found |
| 75 | no fault found in what doctor could read |

Doctor answers whether the node can run pods with GPUs. It does not watch what changes after that, such as counters of NVLink, ports of
InfiniBand that flap, and disks that age: programs that watch a fleet do.

This file is generated from the table in internal/doctor: ` + "`go test ./internal/doctor -run TestDocs -update`" + `.
`)
	for _, c := range Entries() {
		fmt.Fprintf(&b, "\n## %s: %s\n\n- reads: %s\n- meaning: %s\n", c.Code, c.Title, c.Reads, c.Meaning)
		fmt.Fprintf(&b, "- fix: %s\n- interrupts: %s\n", c.Fix, c.Interrupts)
		if c.NoRepair != "" {
			fmt.Fprintf(&b, "- no automatic repair: %s\n", c.NoRepair)
		} else {
			fmt.Fprintf(&b, "- repair: gpuadm repair %s\n", c.Code)
		}

		if len(c.By) > 0 {
			fmt.Fprintf(&b, "- caused by any of these, if doctor finds it too: %s\n", strings.Join(c.By, ", "))
		}
		fmt.Fprintf(&b, "- sources: %s\n", strings.Join(c.Sources, "; "))
		if len(c.Xids) > 0 {
			b.WriteString("\n| Xid | about | means | what to do |\n|---|---|---|---|\n")
			for _, x := range c.Xids {
				fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", x.Number, x.Of, x.Means, x.Action())
			}
		}
	}

	if *update {
		must.OK(t, os.WriteFile(docs, []byte(trouble.Commands(b.String(), trouble.Plain)), 0o644))
	}
	want := must.Get(os.ReadFile(docs))(t)
	got := trouble.Commands(b.String(), trouble.Plain)
	check.None(t, cmp.Diff(string(want), got), "(-want +got, -update takes it over)")
}

// oneVersion is in the name of a listing of one version of the driver:
// ubuntu2204__nvidia__570.133.20.txt.
var oneVersion = pattern.Of(`__(\d{3}\.\d+(?:\.\d+)?)(?:-[a-z]+)?\.txt$`)

// TestLockstep holds the names of packages that must be of one version against the recorded lists
// of real repositories: of a list of one version each of them is of that version.
func TestLockstep(t *testing.T) {
	files, err := filepath.Glob("../../test/listings/data/*.txt")
	must.That(t, err == nil && len(files) >= 20, "%v: %v", "no listings", err)
	found := 0
	for _, file := range files {
		of := oneVersion().FindStringSubmatch(filepath.Base(file))
		if of == nil {
			continue
		}
		data := must.Get(os.ReadFile(file))(t)
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) < 2 || !isLockstep(f[0]) {
				continue
			}
			v := driverVersion().FindStringSubmatch(f[1])
			if v == nil {
				continue
			}
			found++
			check.That(t, v[1] == of[1], "%s: %s is %s", filepath.Base(file), f[0], f[1])
		}
	}

	check.That(t, found >= 100, "only %d packages are found that must be of the driver's version", found)
}
