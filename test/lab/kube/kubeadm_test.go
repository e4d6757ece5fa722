// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	_ "embed"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// partitioned is a spec for two H100 of two partitions each, which the device plugin offers as four
// GPUs.
//
//go:embed testdata/partitioned.toml
var partitioned string

// TestLabKubeKubeadm: gpuadm prepares a machine, and a plain kubeadm join makes it a node, which
// registers with all labels and taints of the spec. The next apply says that the GPUs are ready,
// and the one after it has nothing to do; nor has one after a reboot, in which kubelet waits for
// the GPUs. Undo is refused while a pod has a GPU, and leaves the node in its cluster.
func TestLabKubeKubeadm(t *testing.T) {
	for _, dist := range lab.DistsFor(t) {
		t.Run(dist, func(t *testing.T) {
			t.Parallel()
			c := cluster.Run(t)
			n := bootGPU(t, c, "kubeadm-"+dist, dist)
			n.Packages()
			n.wants(partitioned)
			before := n.tree("/etc/kubernetes")
			t.Log(n.gpuadm(0, []string{"apply", "--install"}, "until the node has joined"))
			n.gpuadm(0, []string{"status"}, "until the node has joined")

			token := n.Join()
			n.Ready()
			n.registered()
			n.NamedDevices("nvidia.com/gpu", n.uuids()...)
			n.settled()
			n.joined()
			n.secrets(token)
			n.idle()

			t.Log("a reboot")
			n.Reboot()
			n.again()
			n.heldBack()
			n.idle()

			n.keepsPod()
			n.gpuadm(0, []string{"undo", "--to", "all"})
			n.Ready()
			if is := kube.Condition(n.Object(), gpuReady)["status"]; is == "True" {
				t.Errorf("who reads the Node still takes the GPUs for ready: %s", n.Describe())
			}
			n.same(before, n.tree("/etc/kubernetes"))
		})
	}
}

// registered wants the labels and taints of the spec on the Node that kubelet has just registered.
// gpuadm has not run since.
func (n gpuHost) registered() {
	n.t.Helper()
	n.labelled()
	n.seenReady()
	o := n.Object()
	check.List(n.t, kube.Taints(o), []string{"example.com/gpu=yes:NoSchedule"}, "registered with the taints")
	is := kube.Condition(o, gpuReady)
	check.That(n.t, is == nil, "gpuadm has run since: %v", is)
}

// uuids are those of the partitions.
func (n gpuHost) uuids() (list []string) {
	n.t.Helper()
	for _, gpu := range n.gpus() {
		for _, instance := range gpu.Instances {
			list = append(list, instance.Compute[0].UUID)
		}
	}

	return list
}

// keepsPod wants an undo to touch nothing while a pod has a partition.
func (n gpuHost) keepsPod() {
	n.t.Helper()
	n.Allocatable("nvidia.com/gpu", 2*count)
	name := "work-" + n.Name
	pod(n.c, name, n.Name, "nvidia.com/gpu")
	n.c.PodReady("default", name)
	pid, tree := n.MainPID("kubelet.service"), n.tree()
	n.gpuadm(1, []string{"undo", "--to", "all"}, "that needs stop-clients", "pod default/"+name)
	now := n.MainPID("kubelet.service")
	check.That(n.t, now == pid && pid != 0, "an undo that was refused: kubelet was %d, is %d", pid, now)
	n.same(tree, n.tree())
	n.c.Delete("/api/v1/namespaces/default/pods/" + name)
	n.c.Until("the pod has ended, as kubectl drain waits for", func() string {
		if n.c.Look("/api/v1/namespaces/default/pods/"+name) != nil {
			return "it is still there"
		}
		return ""
	})
}

// tree is what lies on the host, what kubelet and its pods leave aside, and these folders.
func (n gpuHost) tree(without ...string) lab.Tree {
	n.t.Helper()
	without = append(without, state, "/etc/gpuadm", "/var/lib/kubelet", "/var/lib/cni", "/usr/libexec/kubernetes", "/var/lib/fakenvml.state")
	return n.Tree([]string{"/etc", "/usr", "/var"}, without...)
}

// same wants two trees to be the same, but for what the test's device plugin has in them.
func (n gpuHost) same(before, after lab.Tree) {
	n.t.Helper()
	for _, tree := range []lab.Tree{before, after} { // systemd makes links and folders for the test's units, which are not gpuadm's
		maps.DeleteFunc(tree, func(name string, _ lab.Entry) bool {
			return strings.Contains(name, "devplug")
		})
	}

	check.None(n.t, before.Diff(after), "not as before:")
}

// joined wants a Node with all that the spec says.
func (n gpuHost) joined() {
	n.t.Helper()
	n.seenReady()
	n.labelled()
	o := n.Object()
	check.List(n.t, kube.Taints(o), []string{"example.com/gpu=yes:NoSchedule"}, "taints")
	is := kube.Condition(o, gpuReady)
	check.That(n.t, is["status"] == "True" && strings.HasPrefix(kube.Text(is, "message"), "2 × H100") && strings.HasSuffix(kube.Text(is, "message"), n.BootID()[28:]),
		"condition %v", is)
	check.Equal(n.t, kube.Text(o, "status", "allocatable", "nvidia.com/gpu"), fmt.Sprint(2*count), "allocatable")
}

// labelled wants a Node with all labels that the spec says and the GPUs have.
func (n gpuHost) labelled() {
	n.t.Helper()
	o := n.Object()
	for key, want := range map[string]string{
		"example.com/pool": "h100", "nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": fmt.Sprint(2 * count),
		"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", "nvidia.com/mig.strategy": "single",
	} {
		check.Equal(n.t, kube.Text(o, "metadata", "labels", key), want, "label %s is", key)
	}

	_, there := kube.At(o, "metadata", "labels").(kube.Object)["nvidia.com/gfd.timestamp"]
	check.That(n.t, !there, "a timestamp that would change at each boot")
}

// seenReady waits until the cluster has taken its own taint off: its controller may lag behind
// kubelet, which says that it is ready.
func (n gpuHost) seenReady() {
	n.t.Helper()
	n.c.Until("the cluster has seen that the node is ready", func() string {
		for _, taint := range kube.Taints(n.Object()) {
			if strings.HasPrefix(taint, "node.kubernetes.io/not-ready") {
				return taint
			}
		}
		return ""
	})
}

// secrets wants the token nowhere on the machine, and the key in the one file that kubelet reads.
func (n gpuHost) secrets(token string) {
	n.t.Helper()
	const current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	key := n.Get(current)
	_, key, _ = strings.Cut(key, "PRIVATE KEY-----\n")
	key, _, _ = strings.Cut(key, "\n")
	must.That(n.t, len(key) >= 40, "there is no key in %s", current)
	for what, text := range map[string]string{"token": token[7:], "key": key} {
		r := n.Exec("grep", "-rlFs", "--devices=skip", "-e", text, "/etc", "/var", "/run", "/tmp", "/root", "/usr/local")
		for name := range strings.Lines(r.Stdout) {
			if name = strings.TrimSpace(name); what == "token" || !strings.HasPrefix(name, "/var/lib/kubelet/pki/") {
				n.t.Errorf("the %s is in %s", what, name)
			}
		}

		r = n.Exec("sh", "-c", `journalctl --no-pager | grep -F -e "$1"`, "sh", text)
		check.That(n.t, r.Exit != 0, "the %s is in the journal: %s", what, r.Stdout)
	}

	r := n.Exec("find", "/var/lib/kubelet/pki", "-name", "*client*", "-type", "f", "-perm", "/077")
	check.That(n.t, r.Stdout == "", "others may read the key: %s", r.Stdout)
}

// idle wants an apply with nothing to do, which costs one request.
func (n gpuHost) idle() {
	n.t.Helper()
	before := len(n.c.Requests(n.user()))
	r := n.gpuadm(0, []string{"apply"})
	check.That(n.t, r.Stdout == "Nothing to do.\n", "the second apply: %s", r)
	check.List(n.t, n.c.Requests(n.user())[before:], []string{"get /api/v1/nodes/" + n.Name}, "the second apply asked for")
	n.gpuadm(0, []string{"status"})
}
