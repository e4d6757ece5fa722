// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/test/check"
)

// What the driver says in the kernel's log is put into words: the latest first, each thing once,
// and no more than three.
func TestMeanings(t *testing.T) {
	for _, x := range []struct{ lines, first string }{
		{"NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.", "power the machine off and on"},
		{"NVRM: Xid (PCI:0000:17:00): 79, pid=4711, name=python3, GPU has fallen off the bus.", "Xid 79 of GPU 0000:17:00.0: GPU has fallen off the bus: drain the node (kubectl drain NODE "},
		{"NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=python3, MMU Fault", "GPU memory page fault: find the cause in the program's own log"},
		{"NVRM: Xid (PCI:0000:9b:00): 119, pid=1, Timeout after 6s of waiting for RPC response from GPU2 GSP!", "Xid 119 of GPU 0000:9b:00.0: GSP RPC timeout: drain the node "},
		{"NVRM: Xid (PCI:0000:9b:00): 9999, something new", ""},
		{"NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x62:0x40:2393)\nNVRM: GPU 0000:17:00.0: rm_init_adapter failed, device minor number 0", "could not start a GPU: power the machine off and on"},
		{"nvidia 0000:17:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2\nNVRM: RmFetchGspRmImages: No firmware image found", "(GSP) could not be started"},
		{"NVRM: GPU 0000:17:00.0: GSP firmware could not be read\nNVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x61:0x56:1697)", "could not start a GPU"},
		{"NVRM: The NVIDIA GPU 0000:17:00.0 (PCI ID: 10de:1db6)\nNVRM: nvidia.ko because it does not include the required GPU: it is not supported by open nvidia.ko", `modules = "proprietary"`},
		{"NVRM: installed in this system requires use of the NVIDIA open kernel modules.", `modules = "open"`},
		{"NVRM: API mismatch: the client has the version 580.95.05, but\nNVRM: this kernel module has the version 570.172.08.", "libraries of another version"},
		{"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", ""},
	} {
		got := faults.Meanings(strings.Split(x.lines, "\n"))
		if x.first == "" && len(got) > 0 || x.first != "" && (len(got) == 0 || !strings.Contains(got[0], x.first) || !strings.HasPrefix(got[0], "the kernel's log: ")) {
			t.Errorf("%s\n%q, want %q", x.lines, got, x.first)
		}
	}

	many := []string{}
	for _, code := range []string{"48", "63", "64", "79", "79"} {
		many = append(many, "NVRM: Xid (PCI:0000:17:00): "+code+", x")
	}
	got := faults.Meanings(many)
	check.That(t, len(got) == 3 && strings.Contains(got[0], "Xid 79") && strings.Contains(got[2], "Xid 63"), "%q", got)
}

// TestXids: each number is there once, what interrupts comes after the drain, and each action can
// be typed.
func TestXids(t *testing.T) {
	seen := map[int]bool{}
	for _, x := range faults.Xids() {
		check.That(t, !seen[x.Number], "Xid %d is there twice", x.Number)
		seen[x.Number] = true
		action := x.Action()
		drain := strings.Index(action, "kubectl drain NODE")
		for _, step := range []string{"reset the GPU", "sudo reboot", "power the machine off"} {
			at := strings.Index(action, step)
			check.That(t, at < 0 || (drain >= 0 && at >= drain), "Xid %d: %q comes before the drain: %s", x.Number, step, action)
		}

		check.That(t, strings.Contains(action, "(") || strings.Contains(action, "sudo "), "Xid %d: nothing can be typed: %s", x.Number, action)
	}
}

// TestFaults: each line of the log is the first fault's that has it, and each fault has its advice.
func TestFaults(t *testing.T) {
	for _, c := range faults.Checks() {
		f := faults.Of(c.Code)
		check.That(t, f.Fix == c.Fix && f.Fix != "" && (f.Means == "") == (f.Says == nil), "%s: %+v", c.Code, f)
		for _, text := range f.Says {
			got := faults.Meanings([]string{"NVRM: " + text})
			check.That(t, len(got) == 1 && strings.HasSuffix(got[0], f.Means+": "+f.Fix), "%q of %s counts as %q", text, c.Code, got)
		}
	}

	check.That(t, faults.Of("").Fix == "", "a fault that is none has a fix")
}
