// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	migConfig = "nvidia.com/mig.config"
	// labelled follows the label. The file has mig-parted's format, as the GPU Operator's ConfigMap
	// has it.
	labelled    = "[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nfollow_label = true\n[node]\n"
	labelLayout = `version: v1
mig-configs:
  two:
    - {devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}
  seven:
    - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
`
)

// TestLabKubeMIGLabel: two nodes change their partitions by the label of the GPU Operator's MIG
// manager, under the DaemonSet. Its pod applies once an hour here, but for an apply that has
// failed, so that only a changed label starts one. A pod that kubelet has given a partition keeps
// it though no process of it is on the GPU, until it has ended. The first kubelet lists ended pods
// too, as all did before Kubernetes 1.34, but frees their devices before.
func TestLabKubeMIGLabel(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	allow(c)
	var nodes []gpuHost
	for i, dist := range []string{"bookworm", "trixie"} {
		n := bootGPU(t, c, "mig-label-"+dist, dist)
		n.Put("/etc/gpuadm/mig.yaml", labelLayout, 0o644)
		n.Kubeadm(kube.Kubeadm{
			Token:  c.Token(),
			Config: kube.Object{"featureGates": kube.Object{"KubeletPodResourcesListUseActivePods": i > 0}},
		})
		n.Must("systemctl", "start", "kubelet.service")
		n.Ready()
		n.agentEvery("1h", labelled)
		nodes = append(nodes, n)
	}

	held, free := nodes[0], nodes[1]
	two, seven := onBoth(2, "3g.40gb"), onBoth(7, "1g.10gb")
	for _, n := range nodes {
		n.condition("True")
		check.Equal(t, n.partitions(), "off, off", "%s has no label, and", n.Name)
		n.label("two")
	}

	for _, n := range nodes {
		n.changed("two", "success", two)
		asked := "get /api/v1/nodes/" + n.Name + "?resourceVersion=0"
		check.That(t, slices.Contains(c.Requests(accountUser), asked), "the pod has not sent: %s", asked)
	}

	const partition = "nvidia.com/mig-3g.40gb"
	held.NamedDevices(partition, held.uuids()...)
	held.Allocatable(partition, 2*count)
	pod(c, "holds", held.Name, partition)
	c.PodReady("default", "holds")
	for _, n := range nodes {
		n.label("seven")
	}
	free.changed("seven", "success", seven)
	held.changed("seven", "pending", two)
	const log = "/run/gpuadm/daemonset.log"
	c.Until("gpuadm names the pod", func() string { // each apply begins the log again
		if said := held.Must("cat", log); !strings.Contains(said, "pod default/holds has 3g.40gb@") {
			return said
		}
		return ""
	})

	const holds = "/api/v1/namespaces/default/pods/holds"
	c.Merge(holds, kube.Object{"spec": kube.Object{"activeDeadlineSeconds": 1}})
	c.Until("the pod has ended", func() string {
		if phase := kube.Text(c.Get(holds), "status", "phase"); phase != "Failed" {
			return phase
		}
		return ""
	})
	c.Until("the partition of a pod that has ended is free", func() string {
		if r := held.Exec("gpuadm", "apply", "mig", "--unattended", "-f", "/run/gpuadm/node.toml"); r.Exit != 0 {
			return r.String()
		}
		return ""
	})
	held.changed("seven", "success", seven)
}

// onBoth is what both GPUs have with as many partitions of a profile.
func onBoth(number int, profile string) string {
	one := strings.TrimSpace(strings.Repeat(profile+" ", number))
	return one + ", " + one
}

// label names the node's layout, as kubectl label does.
func (n gpuHost) label(layout string) {
	n.t.Helper()
	n.c.Merge("/api/v1/nodes/"+n.Name, kube.Object{"metadata": kube.Object{"labels": kube.Object{migConfig: layout}}})
}

// changed waits until the change of the label to a layout has ended so, with these partitions.
func (n gpuHost) changed(layout, state, want string) {
	n.t.Helper()
	n.c.Until(n.Name+" has followed the label "+layout, func() string {
		is, kept := kube.Text(n.Object(), "metadata", "labels", migConfig+".state"), n.Exec("cat", "/var/lib/gpuadm/mig-layout").Stdout
		if now := n.partitions(); is != state || strings.TrimSpace(kept) != layout || now != want {
			return fmt.Sprintf("%s of %q: %s", is, kept, now)
		}
		return ""
	})
}

// gpus are the host's.
func (n gpuHost) gpus() []fakenvml.GPU {
	n.t.Helper()
	var s fakenvml.State
	must.OK(n.t, json.Unmarshal([]byte(n.Must("fakenvml", "dump")), &s))
	return s.GPUs
}

// partitions are those of each GPU: "3g.40gb 3g.40gb, off".
func (n gpuHost) partitions() string {
	n.t.Helper()
	var all []string
	for _, g := range n.gpus() {
		names := []string{"off"}
		if g.Mode == 1 {
			names = nil
		}
		for _, in := range g.Instances {
			names = append(names, in.Name)
		}
		all = append(all, strings.Join(names, " "))
	}

	return strings.Join(all, ", ")
}
