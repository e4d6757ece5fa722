// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeDisruption: the node's label asks for other partitions while a pod has one that a
// PodDisruptionBudget keeps. With policy = "idle" the change waits. With "drain" it waits too, and
// nothing is interrupted; once the budget lets the pod go it is evicted, by kubelet's identity, the
// partitions are changed, and the node is uncordoned. NVIDIA's own device plugin offers the
// partitions under their own names, before and after.
func TestLabKubeDisruption(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "disruption", "trixie")
	n.hasPlugin()
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	n.Put("/etc/gpuadm/mig.yaml", labelLayout, 0o644)
	mig := strings.Replace(labelled, "[node]", "stop = [\""+pluginUnit+"\"]\n[node]", 1)
	wants := func(disruption string) {
		n.wants(mig + "startup_taint = \"none\"\n[disruption]\n" + disruption)
	}
	wants("")
	n.label("two")
	n.settled("--unattended")
	n.condition("True")
	n.nvidiaPlugin("MIG_STRATEGY=mixed")
	n.offers("4 nvidia.com/mig-3g.40gb")
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
	n.offers("14 nvidia.com/mig-1g.10gb")
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

// trains makes a pod that has a partition of the layout "two", and a budget that keeps it.
func (n gpuHost) trains(name string) {
	n.t.Helper()
	n.c.Cleanup(func() {
		n.c.Delete("/api/v1/namespaces/default/pods/" + name + "?gracePeriodSeconds=0")
	})
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
				"resources": kube.Object{"limits": kube.Object{"nvidia.com/mig-3g.40gb": "1"}},
			}},
		},
	})
}

// TestLabKubeTroubles: what may go wrong between a machine and its cluster ends with the exit code
// that says what to do, with nothing half done, and the next apply heals it.
func TestLabKubeTroubles(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "troubles", "trixie")
	n.prepared("[runtime]\n[node]\n")
	n.settled()
	n.Ready()

	t.Log("the node was deleted")
	c.Delete("/api/v1/nodes/" + n.Name)
	n.gpuadm(75, []string{"apply"}, "restart kubelet")
	n.Must("systemctl", "restart", "kubelet.service")
	n.settled()
	n.Ready()
	n.condition("True")

	t.Log("the certificate has run out")
	n.Must("systemctl", "stop", "kubelet.service")
	current, whole := n.expired()
	n.gpuadm(75, []string{"apply"}, "has run out on")
	n.Put(current, whole, 0o600)
	n.Must("systemctl", "start", "kubelet.service")
	n.settled()
	n.Ready()
	n.condition("True")

	t.Log("the API server is not there when the spec has changed")
	n.wants("[runtime]\n[node]\nlabels = { \"example.com/pool\" = \"a\" }\n")
	n.Must("ip", "link", "set", "host0", "down")
	n.gpuadm(75, []string{"apply"})
	n.wire()
	n.settled()
	check.Equal(t, kube.Text(n.Object(), "metadata", "labels", "example.com/pool"), "a", "label")

	t.Log("the API server is not there at undo")
	pid, undo := n.MainPID("kubelet.service"), []string{"undo", "--to", "all"}
	n.Must("ip", "link", "set", "host0", "down")
	n.gpuadm(75, undo, "cannot read the state of node ", "does not answer", "nothing was touched", "wait, and run the same command again", "--leave")
	check.Equal(t, n.MainPID("kubelet.service"), pid, "an undo that waits: kubelet was %d, is", pid)
	n.wire()
	n.gpuadm(0, undo)
	n.active("kubelet.service", "active")
	if o := n.Object(); kube.Text(o, "metadata", "labels", "example.com/pool") != "" || kube.Condition(o, gpuReady)["status"] == "True" {
		t.Errorf("the Node after undo: %s", n.Describe())
	}
}

// wire plugs the network in again.
func (n gpuHost) wire() {
	n.t.Helper()
	n.Must("ip", "link", "set", "host0", "up")
	n.Must("networkctl", "reconfigure", "host0")
	n.c.Until("the network is there", func() string {
		if r := n.Exec("bash", "-c", "echo > /dev/tcp/10.200.0.1/6443"); r.Exit != 0 {
			return r.Stderr
		}
		return ""
	})
}

// expired puts a certificate that has run out, by the clock, in the place of the node's, and
// returns that with its file.
func (n gpuHost) expired() (current, whole string) {
	n.t.Helper()
	text := must.Get(n.c.Expired(n.Name))(n.t)
	current = strings.TrimSpace(n.Must("readlink", "-f", "/var/lib/kubelet/pki/kubelet-client-current.pem"))
	whole = n.Get(current)
	n.Put(current, text, 0o600)
	return current, whole
}
