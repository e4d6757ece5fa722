// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubeRegisters: a real kubelet that another program set up registers with gpuadm's labels and taints beside those of its
// owner: by flags in the packages' variable, and by a file in the folder of --config-dir. Undo leaves the owner's bytes.
func TestLabKubeRegisters(t *testing.T) {
	const unit = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS --config-dir=/etc/kubernetes/kubelet.conf.d\n"
	for _, c := range []struct {
		name, unit, file string
		labels           map[string]string
	}{
		{"flags", "", "/etc/default/kubelet", map[string]string{"lab.invalid/pool": "h200", "lab.invalid/rack": "7", "example.com/pool": "a"}},
		{"folder", unit, "/etc/kubernetes/kubelet.conf.d/zz-gpuadm.conf", map[string]string{"lab.invalid/pool": "h200"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := cluster.Run(t)
			n := run.Boot("registers-"+c.name, lab.Options{Dist: "trixie", GPUs: 1})
			n.Kubeadm(kube.Kubeadm{
				Token: run.Token(), Flags: "--node-labels=lab.invalid/pool=h200", ExtraFlags: "\"--v=2 --node-labels=lab.invalid/rack=7\"",
				Config: kube.Object{"registerWithTaints": []kube.Object{{"key": "lab.invalid/booting", "effect": "NoSchedule"}}},
			})
			if c.unit != "" {
				n.Put("/etc/systemd/system/kubelet.service.d/20-folder.conf", c.unit, 0o644)
				n.Must("mkdir", "-p", "/etc/kubernetes/kubelet.conf.d")
				n.Must("systemctl", "daemon-reload")
			}
			owner := n.Must("cat", "/etc/default/kubelet")
			n.Put(specFile, "format = 1\n[node]\ngpu_labels = false\nstartup_taint = \"none\"\nlabels = { \"example.com/pool\" = \"a\" }\ntaints = [\"example.com/gpu=yes:NoSchedule\"]\n", 0o644)
			r := n.Exec("gpuadm", "apply")
			if r.Exit != 0 && r.Exit != 75 { // what the API sets waits for the node
				t.Fatalf("%s", r)
			}
			t.Log(r)
			t.Log(n.Must("cat", c.file))
			n.Must("systemctl", "start", "kubelet.service")
			n.Ready()
			o := n.Object()
			for key, want := range c.labels {
				check.Equal(t, kube.Text(o, "metadata", "labels", key), want, "label %s is", key)
			}
			for _, want := range []string{"lab.invalid/booting:NoSchedule", "example.com/gpu=yes:NoSchedule"} {
				got := kube.Taints(o)
				check.That(t, slices.Contains(got, want), "taints %v, want %s", got, want)
			}
			r = n.Exec("gpuadm", "undo", "--to", "all")
			check.That(t, r.Exit == 0, "%s", r)
			check.Equal(t, n.Must("cat", "/etc/default/kubelet"), owner, "after undo")
			r = n.Exec("ls", "/etc/kubernetes/kubelet.conf.d")
			check.That(t, !strings.Contains(r.Stdout, "gpuadm"), "after undo: %s", r)
		})
	}
}
