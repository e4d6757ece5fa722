// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestXidsOfOneGPU: a GPU has one finding for each part that its Xids are about, with the advice of the number; a program's is a note.
func TestXidsOfOneGPU(t *testing.T) {
	const at, other = "NVRM: Xid (PCI:0000:18:00): ", "NVRM: Xid (PCI:0000:9a:00): "
	for _, c := range []struct {
		name  string
		lines []string
		want  string // of each root cause: what was found, and the beginning of its fix
		note  string
	}{
		{"a program's", []string{at + "31, pid=1, name=python, MMU Fault"}, "", "Xid 31, GPU memory page fault"},
		{"unknown", []string{at + "9999, words"}, "", ""},
		{"two of one part", []string{at + "119, words", at + "120, words", at + "119, words"}, "GPU 0000:18:00.0 reported Xid 120, GSP error; Xid 119, GSP RPC timeout, 2 times | drain the node", ""},
		{"one brings the others", []string{at + "45, words", at + "62, words", at + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"}, "GPU 0000:18:00.0 reported Xid 62, halt of an internal microcontroller | drain the node", ""},
		{"two GPUs, two fixes", []string{at + "62, words", other + "61, words"}, "GPU 0000:18:00.0 reported Xid 62, halt of an internal microcontroller | drain the node, GPU 0000:9a:00.0 reported Xid 61, breakpoint of an internal microcontroller | run sudo nvidia", ""},
		{"two GPUs, one fix", []string{at + "62, words", other + "158, words"}, "GPU 0000:18:00.0 reported Xid 62, halt of an internal microcontroller + GPU 0000:9a:00.0 reported Xid 158, GPU fatal timeout | drain the node", ""},
		{"memory and a device", []string{at + "62, words", at + "48, words"}, "GPU 0000:18:00.0 reported Xid 62, halt of an internal microcontroller | drain the node", ""}, // its ECC counters are clean again
		{"a recovery alone", []string{at + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"}, "of GPU 0000:18:00.0 the driver asks for: Node Reboot Required | do what the driver", ""},
		{"a recovery that is over", []string{at + "154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := working(t)
			r.says(c.lines...)
			report := examine(t, r.node())
			var causes []string
			for _, cause := range report.Causes {
				var what []string
				for _, f := range cause.Found {
					what = append(what, f.What)
				}
				causes = append(causes, strings.Join(what, " + ")+" | "+cause.Fix)
			}
			wants := strings.Split(c.want, ", GPU 0000:9a")
			if c.want == "" {
				wants = nil
			}
			must.That(t, len(causes) == len(wants), "%q, want %q", causes, wants)
			for i, want := range wants {
				if i > 0 {
					want = "GPU 0000:9a" + want
				}
				if !strings.HasPrefix(causes[i], want) {
					t.Errorf("%q, want %q", causes[i], want)
				}
			}
			if len(report.Notes) != len(strings.Fields(c.note[:min(1, len(c.note))])) || c.note != "" && !strings.Contains(report.Notes[0].What, c.note) {
				t.Errorf("notes %v, want %q", report.Notes, c.note)
			}
		})
	}
}

// TestXids finds each Xid of the catalogue on a machine where the driver answers no more, and takes a program's for a note.
func TestXids(t *testing.T) {
	for _, x := range faults.Xids() {
		t.Run(strconv.Itoa(x.Number), func(t *testing.T) {
			r := working(t)
			r.says(fmt.Sprintf("NVRM: Xid (PCI:0000:5d:00): %d, pid=1, name=python, words", x.Number))
			program := x.Of == faults.OfProgram
			if !program {
				r.gpu(3, `lost = "it must be reset before it can be used"`)
			}
			report := examine(t, r.node())
			check.That(t, program == slices.ContainsFunc(report.Notes, func(f Found) bool { return f.Code == xidCode }), "notes: %v", report.Notes)
			if got := codes(report); program && got != "" || !program && !slices.Contains(strings.Fields(got), xidCode) {
				t.Errorf("root causes %q", got)
			}
		})
	}
}
