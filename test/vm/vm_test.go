// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package vm_test boots a machine, emulated, on the kernel that gpuadm has had Debian's driver compiled for. In the
// lab's hosts no module can be loaded: their kernel is this machine's. Here modprobe and the kernel are real, only the
// GPU is missing, so the best that the module can say is that it found none.
package vm_test

import (
	"flag"
	"os"
	"strings"
	"testing"
)

// asked skips a test that was not asked for by name.
func asked(t *testing.T) {
	t.Helper()
	if run := flag.Lookup("test.run"); run == nil || !strings.Contains(run.Value.String(), "TestVM") {
		t.Skip("emulates a machine, so it runs only when asked for by name: -run TestVM")
	}
	if os.Getuid() != 0 {
		missing(t, "needs root, to lay the lab's disks over each other")
	}
	haveEmulator(t)
}

func TestVMDump(t *testing.T) {
	asked(t)
	m := makeImage(t)
	for _, p := range []string{"", "module.sig_enforce=1"} {
		for name, a := range boot(t, m, p) {
			t.Logf("%s: %d\n%s", name, a.code, a.text)
		}
	}
}
