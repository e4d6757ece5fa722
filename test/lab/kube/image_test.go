// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/images/daemonset"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeShipped: the shipped manifests and image, with the digest of the image in its place, take two nodes with GPUs from
// nothing to ready, and containerd is restarted under the pods; then again, while the pods, kubelet and containerd are killed.
func TestLabKubeShipped(t *testing.T) {
	t.Parallel()
	archive := lab.AgentArchive(t)
	plane := &kube.Shared{}
	c := plane.Run(t)
	t.Cleanup(func() {
		if err := plane.Close(); err != nil {
			t.Error(err)
		}
	})
	apply := func(text string) {
		t.Helper()
		objects := must.Get(kube.Documents([]byte(text)))(t)
		c.Apply(objects...)
	}
	apply(string(daemonset.RBAC))
	var nodes []gpuHost
	image := ""
	for _, dist := range []string{"bookworm", "trixie"} {
		n := bootGPU(t, c, "shipped-"+dist, dist)
		if r := n.ExecInput(bytes.NewReader(archive), "ctr", "-n", "k8s.io", "images", "import", "--base-name", "lab.invalid/gpuadm", "-"); r.Exit != 0 {
			t.Fatal(r)
		}
		digest := strings.Fields(n.Must("sh", "-c", "ctr -n k8s.io images list | grep ^lab.invalid/gpuadm:devel"))[2]
		image = "lab.invalid/gpuadm@" + digest
		n.Must("ctr", "-n", "k8s.io", "images", "tag", "lab.invalid/gpuadm:devel", image) // so that nothing is pulled
		n.Kubeadm(kube.Kubeadm{Token: c.Token(), Flags: "--node-labels=" + nfdLabel + "=true", Config: restartsSoon()})
		n.Must("systemctl", "start", "kubelet.service")
		n.Ready()
		nodes = append(nodes, n)
	}
	const placeholder = "gpuadm@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	began, took := time.Now(), time.Duration(0)
	apply(strings.Replace(string(manifest(t, "onprem")), placeholder, image, 1))
	for _, n := range nodes {
		n.condition("True")
		took = max(took, time.Since(began))
		n.untainted()
		if starts := strings.Count(n.Must("journalctl", "--no-pager", "--unit=containerd.service"), "Started containerd.service"); starts != 2 {
			t.Errorf("%s: containerd was started %d times, want once by the boot and once by gpuadm", n.Name, starts)
		}
		if now := n.Must("ctr", "-n", "k8s.io", "containers", "list"); !strings.Contains(now, "lab.invalid/gpuadm") {
			t.Errorf("%s: the pod does not run the image %s:\n%s", n.Name, image, now)
		}
	}
	killed(t, nodes, took)
}
