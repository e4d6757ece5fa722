// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// cluster is the control plane of all tests here.
var cluster kube.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	if err := cluster.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// TestLabKubeGround proves the lab: a host's kubelet joins by a bootstrap token, counts devices, runs a pod with one, and
// is ready again after a reboot and after a power loss.
func TestLabKubeGround(t *testing.T) {
	for _, dist := range lab.Dists() {
		t.Run(dist, func(t *testing.T) {
			t.Parallel()
			c := cluster.Run(t)
			n := c.Boot("ground-"+dist, lab.Options{Dist: dist})
			n.Kubeadm(kube.Kubeadm{
				Token: c.Token(), Flags: "--node-labels=lab.invalid/pool=h200",
				Config: kube.Object{"registerWithTaints": []kube.Object{{"key": "lab.invalid/booting", "effect": "NoSchedule"}}},
			})
			n.Must("systemctl", "start", "kubelet.service")
			n.Ready()
			o := n.Object()
			check.Equal(t, kube.Text(o, "metadata", "labels", "lab.invalid/pool"), "h200", "label")
			got := kube.Taints(o)
			check.That(t, len(got) > 0 && got[0] == "lab.invalid/booting:NoSchedule", "taints %v", got)
			n.Devices(8)
			n.Allocatable("nvidia.com/gpu", 8)
			pod(c, "gpu-"+dist, n.Name)
			c.PodReady("default", "gpu-"+dist)
			r := n.Exec("ctr", "-n", "k8s.io", "run", "--rm", lab.AgentImage, "agent", "/usr/local/sbin/gpuadm", "version")
			check.That(t, r.Exit == 0, "gpuadm in its image: %s", r)
			n.Reboot()
			n.Ready()
			n.Allocatable("nvidia.com/gpu", 8)
			n.PowerLoss()
			n.Ready()
			n.Allocatable("nvidia.com/gpu", 8)
		})
	}
}

// pod makes a pod on a node that wants a device, and is ready once it reaches the API server.
func pod(c *kube.T, name, node string) {
	c.Helper()
	c.Cleanup(func() { c.Delete("/api/v1/namespaces/default/pods/" + name + "?gracePeriodSeconds=0") })
	c.Apply(kube.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": kube.Object{"name": name, "namespace": "default"},
		"spec": kube.Object{
			"nodeSelector": kube.Object{"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 1,
			"tolerations": []kube.Object{{"operator": "Exists"}},
			"containers": []kube.Object{{
				"name": "main", "image": lab.PauseImage, "imagePullPolicy": "Never",
				// From its own network to the API server's service, as programs in pods ask it.
				"readinessProbe": kube.Object{
					"exec":          kube.Object{"command": []string{"/bin/sh", "-c", "echo | /bin/busybox nc -w 5 10.96.0.1 443"}},
					"periodSeconds": 1, "timeoutSeconds": 10,
				},
				"resources": kube.Object{"limits": kube.Object{"nvidia.com/gpu": "1"}},
			}},
		},
	})
}

// TestLabKubeDiscovery proves what a token's owner finds without trust: where the cluster is, signed with the token.
func TestLabKubeDiscovery(t *testing.T) {
	c := cluster.Run(t)
	c.Token()
	o, err := c.Bearer("").Get(t.Context(), "/api/v1/namespaces/kube-public/configmaps/cluster-info")
	check.That(t, err == nil && kube.Text(o, "data", "kubeconfig") != "", "%v, %v", o, err)
	_, err = c.Bearer("").Get(t.Context(), "/api/v1/namespaces/kube-system/configmaps/kubelet-config")
	check.That(t, kube.StatusOf(err) == 403, "an anonymous client reads kubelet-config: %v", err)
}
