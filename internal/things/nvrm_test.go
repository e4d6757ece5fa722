// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/things"
)

// What the driver says in the kernel's log is put into words: the latest first, each thing once, and no more than three.
func TestMeanings(t *testing.T) {
	for _, x := range []struct{ lines, first string }{
		{"NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.", things.Xids()["79"].String()},
		{"NVRM: Xid (PCI:0000:17:00): 79, pid=4711, name=python3, GPU has fallen off the bus.", "Xid 79 of GPU 0000:17:00: GPU has fallen off the bus: drain the node (kubectl drain NODE "},
		{"NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=python3, MMU Fault", "GPU memory page fault: find the cause in the program's own log"},
		{"NVRM: Xid (PCI:0000:9b:00): 119, pid=1, Timeout after 6s of waiting for RPC response from GPU2 GSP!", "Xid 119 of GPU 0000:9b:00: GSP RPC timeout: drain the node "},
		{"NVRM: Xid (PCI:0000:9b:00): 9999, something new", ""},
		{"NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x62:0x40:2393)\nNVRM: GPU 0000:17:00.0: rm_init_adapter failed, device minor number 0", "could not start a GPU"},
		{"nvidia 0000:17:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2\nNVRM: RmFetchGspRmImages: No firmware image found", "(GSP) could not be started"},
		{"NVRM: GPU 0000:17:00.0: GSP firmware could not be read\nNVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x61:0x56:1697)", "could not start a GPU"},
		{"NVRM: The NVIDIA GPU 0000:17:00.0 (PCI ID: 10de:1db6)\nNVRM: nvidia.ko because it does not include the required GPU: it is not supported by open nvidia.ko", `modules = "proprietary"`},
		{"NVRM: installed in this system requires use of the NVIDIA open kernel modules.", `modules = "open"`},
		{"NVRM: API mismatch: the client has the version 580.95.05, but\nNVRM: this kernel module has the version 570.172.08.", "libraries of another version"},
		{"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", ""},
	} {
		got := things.Meanings(strings.Split(x.lines, "\n"))
		if x.first == "" && len(got) > 0 || x.first != "" && (len(got) == 0 || !strings.Contains(got[0], x.first) || !strings.HasPrefix(got[0], "the kernel's log: ")) {
			t.Errorf("%s\n%q, want %q", x.lines, got, x.first)
		}
	}
	many := []string{}
	for _, code := range []string{"48", "63", "64", "79", "79"} {
		many = append(many, "NVRM: Xid (PCI:0000:17:00): "+code+", x")
	}
	if got := things.Meanings(many); len(got) != 3 || !strings.Contains(got[0], "Xid 79") || !strings.Contains(got[2], "Xid 63") {
		t.Errorf("%q", got)
	}
}

// TestXids: what interrupts comes after the drain, and each action can be typed.
func TestXids(t *testing.T) {
	for number, x := range things.Xids() {
		drain := strings.Index(x.Action, "kubectl drain NODE")
		for _, step := range []string{"reset the GPU", "sudo reboot", "power the machine off"} {
			if at := strings.Index(x.Action, step); at >= 0 && (drain < 0 || at < drain) {
				t.Errorf("Xid %s: %q comes before the drain: %s", number, step, x.Action)
			}
		}
		if !strings.Contains(x.Action, "(") && !strings.Contains(x.Action, "sudo ") {
			t.Errorf("Xid %s: nothing can be typed: %s", number, x.Action)
		}
	}
}
