// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	kubeletFlags = "/etc/default/kubelet"
	engineConfig = "/etc/containerd/config.toml"
	bindings     = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/gpuadm"
)

// TestLabKubeUninstalled: while the account has no rights a container that starts again keeps what
// the one before it has lent, and the startup taint stays in kubelet's flags. Then the release goes
// first, with account, rights, policy and namespace, and undo comes after: it reverts all of the
// machine, and what of the Node kubelet's own identity may, and names the rest.
func TestLabKubeUninstalled(t *testing.T) {
	t.Parallel()
	plane := &kube.Shared{}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	n := bootGPU(t, c, "uninstalled", "bookworm")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	flags, config := n.Get(kubeletFlags), n.Get(engineConfig)
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	c.Apply(policyObjects(t, labKeys)...)
	n.agent("[runtime]\n[node]\n")
	n.condition("True")
	n.untainted()
	must.That(t, strings.Contains(n.Get(kubeletFlags), "register-with-taints"), "kubelet's flags are %s", n.Get(kubeletFlags))

	c.Delete(bindings)
	n.killsPod()
	n.c.Until("the container has started again and warns", func() string {
		return silentUnless(n.Exec("sh", "-c", "grep 'may not change its Node' /var/log/pods/gpuadm*/gpuadm/1.log"))
	})
	n.Must("touch", "/run/mark")
	n.c.Until("it has applied", func() string {
		return silentUnless(n.Exec("sh", "-c", "[ /run/gpuadm/daemonset.log -nt /run/mark ] && [ -s /run/gpuadm/daemonset.log ]"))
	})
	check.That(t, n.Exec("test", "-e", "/run/gpuadm/kubeconfig").Exit == 0, "without an answer the kubeconfig was taken back")
	check.Has(t, n.Get(kubeletFlags), "register-with-taints", "without an answer kubelet's flags are")
	c.Apply(policyObjects(t, labKeys)...)

	t.Log("the release goes")
	c.Delete("/apis/apps/v1/namespaces/gpuadm/daemonsets/gpuadm-" + n.Name)
	n.podGone()
	check.That(t, n.Exec("test", "-e", "/run/gpuadm/kubeconfig").Exit != 0, "the pod has left its kubeconfig on the machine")
	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	for _, path := range []string{policies + "ybindings/gpuadm-own-node", policies + "ies/gpuadm-own-node", bindings, "/api/v1/namespaces/gpuadm"} {
		c.Delete(path)
	}

	r := n.undone(removal(t)[0])
	t.Log(r)
	check.Equal(t, n.Get(kubeletFlags), flags, "after undo kubelet's flags are")
	check.Equal(t, n.Get(engineConfig), config, "after undo containerd's configuration is")
	for key := range kube.At(n.Object(), "metadata", "labels").(kube.Object) {
		check.That(t, !strings.HasPrefix(key, "nvidia.com/"), "after undo the Node has the label %s", key)
	}
	check.Equal(t, kube.Text(n.condition("Unknown"), "reason"), "Undone", "after undo the condition's reason is")
	if kube.Text(n.Object(), "metadata", "annotations", "nvidia.com/gpuadm.startup-taints") != "" {
		check.Has(t, r.Stdout+r.Stderr, "kubectl annotate node "+n.Name+" nvidia.com/gpuadm.startup-taints-", "undo says")
	}
}

// silentUnless is why a command has not succeeded yet.
func silentUnless(r lab.Result) string {
	if r.Exit == 0 {
		return ""
	}
	return r.String() + " "
}

// podGone waits until the node's pod of the DaemonSet is gone.
func (n gpuHost) podGone() {
	n.t.Helper()
	n.c.Until("the DaemonSet's pod is gone", func() string {
		for _, pod := range kube.List(n.c.Get("/api/v1/namespaces/gpuadm/pods"), "items") {
			if kube.Text(pod, "metadata", "labels", "app") == "gpuadm-"+n.Name {
				return "it is there"
			}
		}
		return ""
	})
}
