// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestXidsOfOneGPU: a GPU has one finding for each part that its Xids are about, with the advice of
// the number. A program's is a note, and so is one of a GPU that answers where the driver does not
// say whether it was reset since.
func TestXidsOfOneGPU(t *testing.T) {
	const at, other, nvswitch = "NVRM: Xid (PCI:0000:18:00): ", "NVRM: Xid (PCI:0000:9a:00): ", "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "
	const netir, asks = "149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x00%x 0x00000000 0x0)", "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
	for _, c := range []struct {
		name, asks string // what NVML says that the driver asks for, of both GPUs
		lines      []string
		want       []string // of each root cause: its findings, and the beginning of its fix
		note       string
	}{
		{"a program's", "none", []string{at + "31, pid=1, name=python, MMU Fault"}, nil, "Xid 31, GPU memory page fault"},
		{"no such number", "none", []string{at + "9999, words"}, nil, "Xid 9999, which NVIDIA's catalogue"},
		{"two of one part", "reset", []string{at + "119, words", at + "120, words", at + "119, words"}, []string{"Xid 120, GSP error; Xid 119, GSP RPC timeout, 2 times | drain"}, ""},
		{"one brings the others", "reset", []string{at + "45, words", at + "62, words", at + asks}, []string{"Xid 62, halt of an internal microcontroller | drain"}, ""},
		{"two GPUs, two fixes", "reset", []string{at + "62, words", other + "61, words"}, []string{"Xid 62, halt of an internal microcontroller | drain", "Xid 61, breakpoint of an internal microcontroller | run sudo nvidia"}, ""},
		{"two GPUs, one fix", "reset", []string{at + "62, words", other + "158, words"}, []string{"Xid 62, halt of an internal microcontroller + GPU 0000:9a:00.0 reported Xid 158, GPU fatal timeout | drain"}, ""},
		{"was reset", "none", []string{at + "119, words", at + "48, words", at + asks}, nil, ""}, // https://github.com/NVIDIA/NVSentinel/pull/1240
		{"a driver that does not say", "", []string{at + "119, words", at + asks}, nil, "Xid 119, GSP RPC timeout: the GPU answers, and this driver does not say"},
		{"a driver that does not say, twice", "", []string{at + "119, words", at + "119, words"}, nil, "Xid 119, GSP RPC timeout, 2 times: the GPU answers"},
		{"its counters are clean", "", []string{at + "48, words"}, nil, ""},
		{"a recovery alone", "reboot", nil, []string{": Reboot Node | drain"}, ""},
		{"no reset is asked for", "drain-p2p", []string{at + "74, words"}, []string{": Drain P2P | end the programs"}, ""},
		{"its work may end first", "drain-reset", nil, []string{": Drain P2P and Reset Gpu | keep new pods off"}, ""},
		{"a newer one", "bus-reset", nil, []string{": Reset the GPU's PCIe bus | drain"}, ""},
		{"another newer one", "system-reboot", []string{at + "119, words"}, []string{"Xid 119, GSP RPC timeout | "}, ""},
		{"an unknown one", "action 9", []string{at + "48, words"}, []string{"Xid 48, "}, ""},
		{"an unknown one alone", "action 9", nil, []string{": action 9, which this release does not know | do what the driver asks for (nvidia-smi"}, ""},
		{"off the bus, in two lines", "reset", []string{
			at + "79, GPU has fallen off the bus.", "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
		}, []string{"Xid 79, GPU has fallen off the bus | drain"}, "fell off the bus in this boot"},
		{"of a MIG slice", "reset", []string{"NVRM: Xid (PCI:0000:18:00 GPU-I:05 GPU-CI:01): 109, words"}, []string{"Xid 109, context switch timeout | drain"}, ""},
		{"of an old driver", "reset", []string{"NVRM: Xid (0000:18:00): 62, words"}, []string{"Xid 62, halt of an internal microcontroller | drain"}, ""},
		{"a link's sub-code", "reset", []string{at + fmt.Sprintf(netir, 0x1005c6)}, []string{"Xid 149, NVLink NETIR error (NETIR_LINK_EVT) | drain"}, ""},
		{"a sub-code that asks for nothing", "none", []string{at + fmt.Sprintf(netir, 38<<20|0x5c6)}, nil, "Xid 149, NVLink NETIR error (NETIR_LINK_EVT)"},
		{"one switch", "reset", []string{
			nvswitch + "20034, Fatal, Link 32 LTSSM Fault Up", at + "74, words", other + "74, words", nvswitch + "20034, Data {0x0}",
		}, []string{"NVSwitch 0000:05:00.0 reported SXid 20034, DLPL_LTSSM_FAULT_UP | drain"}, ""},
		{"a switch's that becomes fatal", "reset", []string{
			nvswitch + "22013, Non-fatal, Link 4 Minion", nvswitch + "22013, Fatal, Link 4 Minion",
		}, []string{
			"reported SXid 22013, MINION_NONFATAL | drain", ": Reset Gpu | drain",
		}, ""},
		{"a switch's that is over", "none", []string{nvswitch + "20034, Fatal, Link 32 LTSSM Fault Up"}, nil, "SXid 20034"},
		{"a switch's that asks for nothing", "reset", []string{nvswitch + "22013, Non-fatal, Link 4 Minion"}, []string{": Reset Gpu | drain"}, "SXid 22013, MINION_NONFATAL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := incident.Working(t)
			r.Says(c.lines...)
			for nth, address := range r.GPUs() {
				is := "none"
				if strings.Contains(strings.Join(c.lines, "")+at, strings.TrimSuffix(address, ".0")) || c.asks == "" {
					is = c.asks
				}
				if is != "" {
					r.GPU(nth, fmt.Sprintf("recovery = %q", is))
				}
			}

			report := examine(t, r.Node())
			must.That(t, len(report.Causes) == len(c.want), "%v, want %q", report.Causes, c.want)
			for i, want := range c.want {
				var what []string
				for _, f := range report.Causes[i].Found {
					what = append(what, f.What)
				}
				got := strings.Join(what, " + ") + " | " + report.Causes[i].Fix
				check.That(t, strings.Contains(got, want), "%q, want %q", got, want)
			}

			check.That(t, len(report.Notes) == min(1, len(c.note)), "notes %v, want %q", report.Notes, c.note)
			check.That(t, c.note == "" || len(report.Notes) > 0 && strings.Contains(report.Notes[0].What, c.note), "notes %v, want %q", report.Notes, c.note)
		})
	}
}

// TestXids finds each Xid of the catalogue on a GPU that answers no more, and takes those for notes
// that are not a fault of the machine.
func TestXids(t *testing.T) {
	r := incident.Working(t)
	for _, x := range faults.Xids() {
		r.Says(fmt.Sprintf("NVRM: Xid (PCI:0000:%04x:00): %d, pid=1, name=python, words", x.Number, x.Number))
	}
	report, named := examine(t, r.Node()), 0
	for _, x := range faults.Xids() {
		want := fmt.Sprintf("GPU 0000:%04x:00.0 reported Xid %d, ", x.Number, x.Number)
		is := func(f Found) bool { return strings.HasPrefix(f.What, want) }
		at := slices.ContainsFunc(report.Causes, func(c Cause) bool {
			return slices.ContainsFunc(c.Found, is)
		})
		if at != x.Note() && slices.ContainsFunc(report.Notes, is) == x.Note() {
			named++
		}
	}

	check.Equal(t, named, len(faults.Xids()), "Xids that are found")
}

// Errors of one rank have one order: the first of them decides what doctor advises.
func TestXidsOfOneRank(t *testing.T) {
	counts := map[faults.Xid]int{}
	for number := 9001; number < 9010; number++ {
		_, xid, _ := faults.ReadXid(fmt.Sprintf("NVRM: Xid (PCI:0000:18:00): %d, words", number))
		counts[xid] = 1
	}

	sorted := byRank(counts)
	byNumber := func(a, b faults.Xid) int { return a.Number - b.Number }
	check.That(t, slices.IsSortedFunc(sorted, byNumber), "%v", sorted)
}
