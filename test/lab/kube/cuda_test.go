// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"strings"
	"testing"
)

// TestLabKubeCUDA: while CUDA does not start no kubelet starts, however green NVML is; a CUDA that hangs is ended; and once it has
// started in this boot it is not started again.
func TestLabKubeCUDA(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "cuda", "trixie")
	n.Packages()
	n.wants("[node]\n")
	const wrong = "/run/fakenvml.state.cuda" // gone after a boot
	for _, c := range []struct{ goes, says string }{
		{"init 802", "cuInit answers 802 (CUDA_ERROR_SYSTEM_NOT_READY): the fabric manager does not run, or the NVLink fabric is not ready"},
		{"init 999", "cuInit answers 999 (CUDA_ERROR_UNKNOWN)"},
		{"crash", "it ended without an answer: signal: segmentation fault"},
		{"hang", "it gave no answer within 10s and was killed"},
	} {
		n.Put(wrong, c.goes+"\n", 0o644)
		n.gpuadm(1, []string{"apply", "--install"}, c.says)
		if is := n.Property("kubelet.service", "ActiveState"); is == "active" {
			t.Fatalf("%s: kubelet is %s", c.goes, is)
		}
	}
	if left := n.Exec("pgrep", "-f", "start-cuda"); left.Exit == 0 {
		t.Errorf("processes are left: %s", left)
	}
	n.Must("rm", wrong)
	n.Must("rm", "/dev/nvidia-uvm")
	n.gpuadm(1, []string{"apply"}, "/dev/nvidia-uvm cannot be opened: no such file or directory", "nvidia-modprobe -u -c 0")
	n.Must("ln", "-s", "null", "/dev/nvidia-uvm")
	n.settled()
	n.Join()
	n.settled()
	n.Ready()
	n.condition("True")

	t.Log("the same boot: nothing is started, so nothing can crash")
	n.Put(wrong, "crash\n", 0o644)
	n.gpuadm(0, []string{"apply"}, "Nothing to do.")
	t.Log("the driver is another one")
	n.Must("fakenvml", "driver", "--version", "590.48.01")
	if r := n.Exec("gpuadm", "apply"); r.Exit != 1 || !strings.Contains(r.String(), "segmentation fault") {
		t.Errorf("another driver: %s", r)
	}
	t.Log("a boot")
	n.Must("fakenvml", "driver", "--version", "580.95.05")
	n.Reboot()
	n.settled()
	n.condition("True")
}
