// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeFormerTaint: a startup taint waits for a device plugin that does not tolerate it, and that is said with the fix;
// dropped from node.toml it goes off the Node. An identity without rights keeps the machine from nothing meanwhile.
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
	n.gpuadm(0, []string{"status"}, toleration, "no device plugin runs here: the node has the taint example.com/starting=x:NoSchedule")
	if named := kube.Text(n.Object(), "metadata", "annotations", "nvidia.com/gpuadm.startup-taints"); named != "example.com/starting=x:NoSchedule" || !n.starting() {
		t.Errorf("the Node's annotation names %q", named)
	}

	t.Log("an identity that may nothing")
	text := must.Get(c.BearerConfig(kube.Server, c.Account("gpuadm", "default", n.Name)))(t)
	n.Put(accountFile, text, 0o600)
	spec := "[runtime]\nset_as_default = true\n[node]\nstartup_taint = \"none\"\n" + account
	n.wants(spec)
	n.gpuadm(75, []string{"apply"}, "system:serviceaccount:gpuadm:default may not patch it",
		"kubectl create clusterrolebinding gpuadm-gpuadm-default --clusterrole=gpuadm-node --serviceaccount=gpuadm:default")
	if !n.starting() || !strings.Contains(n.Must("containerd", "config", "dump"), `default_runtime_name = "nvidia"`) {
		t.Errorf("the taint is on: %v; containerd: %s", n.starting(), n.Must("containerd", "config", "dump"))
	}

	t.Log("and one that may")
	n.account()
	n.settled()
	if n.starting() {
		t.Error("the former startup taint is still on the Node")
	}
	n.condition("True")
	n.gpuadm(0, []string{"apply"}, "Nothing to do.")
}

// starting says whether the node has the startup taint that its spec once stated.
func (n gpuHost) starting() bool {
	return strings.Contains(fmt.Sprint(n.Object()["spec"]), "example.com/starting")
}
