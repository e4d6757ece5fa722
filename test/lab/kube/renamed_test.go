// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubeRenamed: the machine gets another name between two applies. While kubelet runs under
// the old one nothing changes. A kubelet that starts again may not register the new one, since its
// certificate is the old one's: apply and status wait, and name both. Once the machine has joined under its new name
// all goes on there, and an undo leaves nothing on the new Node.
func TestLabKubeRenamed(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "renamed-a", "trixie")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	n.account()
	n.wants("[runtime]\n[node]\nkubeconfig = \"" + accountFile + "\"\nlabels = { \"example.com/pool\" = \"a\" }\n")
	n.settled()
	n.condition("True")

	t.Log("another host name, and the same kubelet")
	b := n
	b.Node = &kube.Node{}
	*b.Node = *n.Node
	b.Name = "renamed-b"
	c.Cleanup(func() { c.Delete("/api/v1/nodes/" + b.Name) })
	n.Put("/etc/hostname", b.Name+"\n", 0o644)
	n.Must("hostname", b.Name)
	n.gpuadm(0, []string{"apply"}, "Nothing to do.")

	t.Log("kubelet starts again")
	n.Must("systemctl", "restart", "kubelet.service")
	n.c.Until("kubelet may not register", func() string {
		const refusal = "renamed-b.*(forbidden|not allowed)|(forbidden|not allowed).*renamed-b"
		return silentUnless(n.Exec("sh", "-c", "journalctl --no-pager --unit=kubelet.service | grep -E '"+refusal+"'"))
	})
	t.Log("the former Node is still ready: the cluster has not noticed yet")
	n.gpuadm(75, []string{"apply"}, n.Name, b.Name, "doctor KUB-017")
	n.c.Until("the former Node is not ready", func() string {
		is := kube.Condition(n.Object(), "Ready")
		if is["status"] == "True" {
			return fmt.Sprint(is)
		}
		return ""
	})
	n.gpuadm(75, []string{"apply"}, n.Name, b.Name, "doctor KUB-017")
	n.gpuadm(75, []string{"status"}, n.Name, b.Name)
	r := n.Exec("gpuadm", "doctor")
	check.Has(t, r.Stdout, "KUB-017", "doctor says")
	check.Has(t, r.Stdout, b.Name, "doctor says")
	check.Has(t, r.Stdout, n.Name, "doctor says")

	t.Log("it joins under its new name")
	n.Must("systemctl", "stop", "kubelet.service")
	n.Must("sh", "-c", "rm -rf /etc/kubernetes/kubelet.conf /var/lib/kubelet/pki")
	c.Delete("/api/v1/nodes/" + n.Name)
	b.Kubeadm(kube.Kubeadm{
		Token:      c.Token(),
		ExtraFlags: strings.TrimPrefix(strings.TrimSpace(n.Get(kubeletFlags)), "KUBELET_EXTRA_ARGS="),
	})
	n.Must("systemctl", "start", "kubelet.service")
	b.Ready()
	b.account()
	b.settled()
	b.condition("True")
	b.untainted()
	check.Equal(t, kube.Text(b.Object(), "metadata", "labels", "example.com/pool"), "a", "label")
	check.That(t, n.Object() == nil, "the former Node is there again")
	b.gpuadm(0, []string{"status"})

	b.gpuadm(0, []string{"undo", "--to", "all"})
	o := b.Object()
	check.That(t, kube.Text(o, "metadata", "labels", "example.com/pool") == "",
		"after undo the Node is\n%s", b.Describe())
	check.That(t, len(kube.Taints(o)) == 0, "after undo the Node is\n%s", b.Describe())
	check.Equal(t, kube.Text(b.condition("Unknown"), "reason"), "Undone",
		"after undo the condition's reason is")
}
