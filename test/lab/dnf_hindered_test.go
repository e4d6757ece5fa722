// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"maps"
	"testing"
)

// idle wants an apply that has nothing to do to ask rpm once for its packages, keys among them, and to run nothing else but
// what says its own version: here no packaging system knows the lab's containerd.
func (d *dnfDriver) idle() {
	d.t.Helper()
	const log = "/run/strace"
	r := d.Exec("strace", "-f", "-q", "-e", "trace=execve", "-e", "signal=none", "-o", log, "gpuadm", "apply", "sources", "packages")
	if r.Exit != 0 || r.Stdout != "Nothing to do.\n" {
		d.t.Fatalf("strace of apply: %s", r)
	}
	ran := ran(d.Get(log))
	if want := map[string]int{"/usr/local/sbin/gpuadm": 1, "/usr/bin/rpm": 1, "/usr/bin/containerd": 1}; !maps.Equal(ran, want) {
		d.t.Errorf("an apply that has nothing to do ran %v, want %v:\n%s", ran, want, d.Get(log))
	}
}

// TestLabDnfHindered: a file system without room, and a script that fails on the way to another version, leave what was there; an
// apply that has nothing to do runs hardly anything.
func TestLabDnfHindered(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	d.spec("580.65.06")
	d.apply(0)
	d.idle()
	before := d.RpmState()

	const firmware = "/usr/lib/firmware/nvidia"
	d.Must("sh", "-c", "cp -a "+firmware+" /run/held; mount -t tmpfs -o size=12k tmpfs "+firmware+"; cp -a /run/held/. "+firmware)
	d.spec("580.95.05")
	t.Log(d.apply(1, "the disk is full", firmware, "try").Stderr)
	d.Must("umount", firmware)
	d.installed("580.65.06")
	for _, d := range differ(d.RpmState(), before) {
		t.Error(d)
	}
	d.apply(0)
	d.installed("580.95.05")
	d.idle()
}
