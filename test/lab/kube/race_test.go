// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeRace: a pod that wants nothing waits for a node. Where kubelet joins first and a
// script taints then, it is on the node before its GPUs are ready. With the startup taint that
// gpuadm has kubelet register with it is not, and comes after.
func TestLabKubeRace(t *testing.T) {
	t.Run("naive", func(t *testing.T) {
		t.Parallel()
		c := cluster.Run(t)
		n := bootGPU(t, c, "race-naive", "bookworm")
		n.plain("early")
		n.Kubeadm(kube.Kubeadm{Token: c.Token()})
		n.Must("systemctl", "start", "kubelet.service")
		n.Ready()
		c.PodReady("default", "early") // as a script that waits for Ready before it taints would find it
		c.Merge("/api/v1/nodes/"+n.Name, kube.Object{"spec": kube.Object{"taints": []kube.Object{{"key": "late", "effect": "NoSchedule"}}}})
		node, _ := n.landed("early")
		check.That(t, node == n.Name, "the race is not shown: the pod did not slip in")
		is := kube.Condition(n.Object(), gpuReady)
		check.That(t, is == nil, "the GPUs were not checked, and yet: %v", is)
	})
	t.Run("startup taint", func(t *testing.T) {
		t.Parallel()
		c := cluster.Run(t)
		n := bootGPU(t, c, "race-taint", "trixie")
		n.plain("patient")
		n.account()
		n.Packages()
		n.wants("[runtime]\n[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[sharing]\nstrategy = \"single\"\n" +
			"[node]\nwait_for_allocatable = true\nkubeconfig = \"" + accountFile + "\"\n")
		n.gpuadm(0, []string{"apply"})
		n.Join()
		n.Ready()                                                                // kubeadm does not wait until kubelet has registered the node
		n.gpuadm(75, []string{"apply"}, "the node offers 0 of 4 nvidia.com/gpu") // there is no device plugin yet
		n.seenReady()
		taints := kube.Taints(n.Object())
		check.That(t, len(taints) == 1 && taints[0] == startup, "taints %v", taints)
		node, _ := n.landed("patient")
		check.That(t, node == "", "the pod slipped in before the GPUs were ready")
		n.Devices(2 * count)
		n.Allocatable("nvidia.com/gpu", 2*count)
		node, _ = n.landed("patient")
		check.That(t, node == "", "the pod slipped in before all was checked")
		n.settled()
		c.PodReady("default", "patient")
		_, landed := n.landed("patient")
		c.Until("the condition was there first", func() string {
			if since := transition(kube.Condition(n.Object(), gpuReady)); since.After(landed) {
				return "the condition is of " + since.String() + ", the pod landed at " + landed.String()
			}
			return ""
		})
		n.seenReady()
		taints = kube.Taints(n.Object())
		check.That(t, len(taints) == 0, "taints %v", taints)
		n.idle()
	})
}

// TestLabKubeAccount: a label that a kubelet may not set, and a taint that is asked for later, go
// by the ServiceAccount; without one the spec is refused.
func TestLabKubeAccount(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "account", "bookworm")
	n.prepared("[runtime]\n[node]\n")
	n.settled()
	n.Ready()
	const restricted = "labels = { \"lab.kubernetes.io/gpu\" = \"yes\" }\n"
	n.wants("[node]\n"+restricted, "[runtime]\n")
	r := n.gpuadm(2, []string{"apply"}, "lab.kubernetes.io/gpu", specFile)
	t.Logf("without a ServiceAccount: %s", r)
	before := len(c.Requests(n.user()))
	n.account()
	n.wants("[runtime]\n[node]\nkubeconfig = \"" + accountFile + "\"\ntaints = [\"example.com/gpu=yes:NoSchedule\"]\n" + restricted)
	n.gpuadm(0, []string{"apply"}, "label lab.kubernetes.io/gpu", "taint example.com/gpu:NoSchedule")
	n.seenReady()
	check.Equal(t, kube.Text(n.Object(), "metadata", "labels", "lab.kubernetes.io/gpu"), "yes", "label")
	taints := kube.Taints(n.Object())
	check.That(t, len(taints) == 1 && taints[0] == "example.com/gpu=yes:NoSchedule", "taints %v", taints)
	t.Logf("kubelet's identity: %v", c.Requests(n.user())[before:])
	t.Logf("the ServiceAccount: %v", c.Requests(accountUser))
	r = n.gpuadm(0, []string{"apply"})
	check.That(t, r.Stdout == "Nothing to do.\n", "the second apply: %s", r)
}

const (
	accountFile = "/etc/gpuadm/account"
	accountUser = "system:serviceaccount:gpuadm:gpuadm"
)

// labKeys are what the tests' node.toml name beside the policy's own list.
const labKeys = `"example.com/*", "lab.kubernetes.io/gpu",`

var allowed sync.Once

// allow makes gpuadm's ServiceAccount with what it may do.
func allow(c *kube.T) {
	c.Helper()
	allowed.Do(func() { c.Apply(policyObjects(c, labKeys)...) })
}

// account puts a kubeconfig of gpuadm's ServiceAccount on the host, as one that is bound to a pod
// there has it.
func (n gpuHost) account() {
	n.t.Helper()
	allow(n.c)
	text := must.Get(n.c.BearerConfig(kube.Server, n.c.Account("gpuadm", "gpuadm", n.Name)))(n.t)
	n.Put(accountFile, text, 0o600)
}

// transition is when a condition became what it is.
func transition(condition kube.Object) time.Time {
	at, _ := time.Parse(time.RFC3339, kube.Text(condition, "lastTransitionTime"))
	return at
}

// TestLabKubeFormerTaint: a startup taint waits for a device plugin that does not tolerate it, and
// that is said with the fix; dropped from node.toml it goes off the Node. An identity without
// rights keeps the machine from nothing meanwhile.
func TestLabKubeFormerTaint(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "former", "trixie")
	n.account()
	const account = "kubeconfig = \"" + accountFile + "\"\n"
	n.prepared("[runtime]\n[node]\nwait_for_allocatable = true\nstartup_taint = \"example.com/starting=x:NoSchedule\"\n" + account)

	t.Log("a device plugin that stays away")
	toleration := "tolerations: [{key: example.com/starting, operator: Exists, effect: NoSchedule}]"
	c.Until("it says who keeps the device plugin away", func() string {
		if r := n.Exec("gpuadm", "apply"); r.Exit != 75 || !strings.Contains(r.Stderr, toleration) {
			return r.String()
		}
		return ""
	})
	n.gpuadm(75, []string{"status"}, toleration, "no device plugin runs here: the node has the taint example.com/starting=x:NoSchedule")
	named := kube.Text(n.Object(), "metadata", "annotations", "nvidia.com/gpuadm.startup-taints")
	check.That(t, named == "example.com/starting=x:NoSchedule" && n.starting(), "the Node's annotation names %q", named)

	t.Log("an identity that may nothing")
	text := must.Get(c.BearerConfig(kube.Server, c.Account("gpuadm", "default", n.Name)))(t)
	n.Put(accountFile, text, 0o600)
	spec := "[runtime]\nset_as_default = true\n[node]\nstartup_taint = \"none\"\n" + account
	n.wants(spec)
	n.gpuadm(75, []string{"apply"}, "may not patch it", "system:serviceaccount:gpuadm:default",
		"give it a ClusterRole with the right to get and patch nodes and nodes/status")
	if !n.starting() || !strings.Contains(n.Must("containerd", "config", "dump"), `default_runtime_name = "nvidia"`) {
		t.Errorf("the taint is on: %v; containerd: %s", n.starting(), n.Must("containerd", "config", "dump"))
	}

	t.Log("and one that may")
	n.account()
	n.settled()
	check.That(t, !n.starting(), "the former startup taint is still on the Node")
	n.condition("True")
	n.gpuadm(0, []string{"apply"}, "Nothing to do.")
}

// starting says whether the node has the startup taint that its spec once stated.
func (n gpuHost) starting() bool {
	return strings.Contains(fmt.Sprint(n.Object()["spec"]), "example.com/starting")
}
