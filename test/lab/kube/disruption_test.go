// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubeDisruption: the node's label asks for other partitions while a pod has one that a PodDisruptionBudget keeps. With policy =
// "idle" the change waits. With "drain" it waits too, and nothing is interrupted; once the budget lets the pod go it is evicted, by kubelet's
// identity, the partitions are changed, and the node is uncordoned.
func TestLabKubeDisruption(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "disruption", "bookworm")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	n.Put("/etc/gpuadm/mig.yaml", labelLayout, 0o644)
	wants := func(disruption string) {
		n.wants(labelled + "startup_taint = \"none\"\n[disruption]\n" + disruption)
	}
	wants("")
	n.label("two")
	n.settled("--unattended")
	n.condition("True")
	n.NamedDevices(n.gpus()[0].Instances[0].Compute[0].UUID)
	n.Allocatable("nvidia.com/gpu", 1)
	const path, budget = "/api/v1/namespaces/default/pods/", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/"
	const name = "trained"
	n.trains(name)
	c.Cleanup(func() { c.Delete(budget + name) })
	c.PodReady("default", name)
	c.Until("the budget counts the pod", func() string {
		if is := kube.At(c.Get(budget+name), "status", "currentHealthy"); fmt.Sprint(is) != "1" {
			return fmt.Sprint(is)
		}
		return ""
	})
	uid := kube.Text(c.Get(path+name), "metadata", "uid")
	stays := func() {
		t.Helper()
		pod := c.Get(path + name)
		check.That(t, kube.Text(pod, "metadata", "uid") == uid && kube.Text(pod, "metadata", "deletionTimestamp") == "", "the pod was interrupted: %v", pod["metadata"])
		is := kube.At(n.Object(), "spec", "unschedulable")
		check.That(t, is == nil, "unschedulable is %v", is)
		if is := n.condition("True"); kube.Text(is, "reason") != "WaitingUntilIdle" || !strings.Contains(kube.Text(is, "message"), "pod default/"+name) {
			t.Errorf("the condition is %v", is)
		}
		n.changed("seven", "pending", onBoth(2, "3g.40gb"))
	}
	n.label("seven")
	n.gpuadm(75, []string{"apply", "--unattended"}, "pod default/"+name+" has 3g.40gb@", "or wait")
	stays()

	t.Log("a drain that the budget forbids")
	wants("policy = \"drain\"\ndrain_deadline = \"1s\"\n")
	n.gpuadm(75, []string{"apply", "--unattended"}, "pod default/"+name+": The disruption budget "+name+" needs 1 healthy pods and has 1 currently")
	stays()

	t.Log("a drain that it lets")
	c.Merge(budget+name, kube.Object{"spec": kube.Object{"minAvailable": 0}})
	n.settled("--unattended")
	// Its containers have ended, which frees the GPU. Kubelet removes the object after that.
	c.Until("the evicted pod is gone", func() string {
		if c.Look(path+name) != nil {
			return "the pod is there"
		}
		return ""
	})
	n.changed("seven", "success", onBoth(7, "1g.10gb"))
	o := n.Object()
	check.That(t, kube.At(o, "spec", "unschedulable") == nil && kube.Text(o, "metadata", "annotations", "nvidia.com/gpuadm.cordoned") == "", "the node is cordoned: %v", o["spec"])
	is := n.condition("True")
	check.That(t, kube.Text(is, "reason") == "GPUsReady", "the condition is %v", is)
	evicted := false
	for _, request := range c.Requests(n.user()) {
		evicted = evicted || strings.HasSuffix(request, path+name+"/eviction")
	}
	check.That(t, evicted, "kubelet's identity has evicted no pod")
}

// trains makes a pod that has a GPU, and a budget that keeps it.
func (n gpuHost) trains(name string) {
	n.t.Helper()
	n.c.Cleanup(func() { n.c.Delete("/api/v1/namespaces/default/pods/" + name + "?gracePeriodSeconds=0") })
	labels := kube.Object{"app": name}
	n.c.Apply(kube.Object{
		"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": kube.Object{"name": name, "namespace": "default"},
		"spec": kube.Object{"minAvailable": 1, "selector": kube.Object{"matchLabels": labels}},
	}, kube.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": kube.Object{"name": name, "namespace": "default", "labels": labels},
		"spec": kube.Object{
			"nodeSelector": kube.Object{"kubernetes.io/hostname": n.Name}, "terminationGracePeriodSeconds": 1,
			"automountServiceAccountToken": false,
			"containers": []kube.Object{{
				"name": "main", "image": lab.PauseImage, "imagePullPolicy": "Never",
				"resources": kube.Object{"limits": kube.Object{"nvidia.com/gpu": "1"}},
			}},
		},
	})
}
