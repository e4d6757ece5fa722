// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabDriverRoom: what a killed run has left in our own folder, and no undo needs, does not keep the next one from its
// work where it has filled the disk; what undo needs is there after it.
func TestLabDriverRoom(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	n.wants(0, n.spec("570.172.08", ""))
	const left = state + "/packages/old_1.0-1_amd64.deb"
	n.Must("sh", "-c", "cp -a "+state+" /run/kept && mount -t tmpfs -o size=16m tmpfs "+state+" && cp -a /run/kept/. "+state+" && mkdir -p "+state+"/packages")
	if r := n.Exec("dd", "if=/dev/zero", "of="+left, "bs=4k"); r.Exit == 0 {
		t.Fatalf("the disk is not full: %s", r)
	}
	n.wants(0, n.spec("580.65.06", ""))
	n.has("580.65.06")
	if r := n.Exec("test", "-e", left); r.Exit == 0 {
		t.Errorf("%s is still there", left)
	}
	n.gpuadm(0, "undo")
	n.has("570.172.08")
	n.gpuadm(0, "undo")
	if out := n.Must("sh", "-c", "ls "+state+"/packages "+state+"/blobs | grep -v : || :"); out != "\n" && out != "" {
		t.Errorf("all is undone, and kept are: %s", out)
	}
}
