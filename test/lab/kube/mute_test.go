// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeMute: the API server takes connections and answers nothing. What gpuadm is asked then
// ends by itself, waits with 75, and nothing is taken back: neither by an apply or an undo, by hand,
// nor by a container of the DaemonSet that starts again. Afterwards all goes on.
func TestLabKubeMute(t *testing.T) {
	t.Parallel()
	plane := &kube.Shared{}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	n := bootGPU(t, c, "mute", "bookworm")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	c.Apply(policyObjects(t, labKeys)...)
	n.account()
	const spec = "[runtime]\n[node]\nkubeconfig = \"" + accountFile + "\"\n"
	n.wants(spec)
	n.settled()
	n.condition("True")
	n.untainted()

	t.Log("by hand")
	flags, config := n.Get(kubeletFlags), n.Get(engineConfig)
	must.That(t, strings.Contains(flags, "register-with-taints"), "kubelet's flags are %s", flags)
	speaks := c.Mute()
	n.mute(75, "apply")
	n.mute(75, "apply", "--unattended")
	n.mute(75, "plan")
	n.mute(75, "status")
	n.mute(75, "undo", "--to", "all")
	n.mute(0, "gate")
	check.Equal(t, n.Get(kubeletFlags), flags, "kubelet's flags are")
	check.Equal(t, n.Get(engineConfig), config, "containerd's configuration is")

	t.Log("a changed spec")
	n.wants(spec + "labels = { \"example.com/pool\" = \"a\" }\n")
	n.mute(75, "apply")
	check.Has(t, n.Get(kubeletFlags), "register-with-taints", "kubelet's flags are")
	check.Has(t, n.Must("containerd", "config", "dump"), "nvidia", "containerd has")
	speaks()
	n.settled()
	check.Equal(t, kube.Text(n.Object(), "metadata", "labels", "example.com/pool"), "a", "label")
	n.undone("gpuadm undo --to all")
	n.Must("rm", "-r", specFile, state) // with the undo's hold

	t.Log("a pod whose container starts again")
	n.agent("[runtime]\n[node]\n")
	n.condition("True")
	n.untainted()
	n.c.Until("the account is lent",
		func() string { return silentUnless(n.Exec("test", "-s", "/run/gpuadm/kubeconfig")) })
	check.Has(t, n.Get(kubeletFlags), "register-with-taints", "kubelet's flags are")
	speaks = c.Mute()
	n.killsPod()
	n.c.Until("the container has started again and warns", func() string {
		return silentUnless(n.Exec("sh", "-c",
			"grep 'cannot check whether the policy' /var/log/pods/gpuadm*/gpuadm/1.log"))
	})
	n.Must("touch", "/run/mark")
	n.c.Until("it has applied", func() string {
		return silentUnless(n.Exec("sh", "-c",
			"[ /run/gpuadm/daemonset.log -nt /run/mark ] && [ -s /run/gpuadm/daemonset.log ]"))
	})
	check.That(t, n.Exec("test", "-s", "/run/gpuadm/kubeconfig").Exit == 0,
		"without an answer the kubeconfig was taken back")
	check.Has(t, n.Get(kubeletFlags), "register-with-taints", "without an answer kubelet's flags are")
	check.Has(t, n.Must("containerd", "config", "dump"), "nvidia", "containerd has")

	t.Log("it answers")
	speaks()
	n.condition("True")
	n.untainted()
	n.takenOff()
}

// mute runs gpuadm at an API server that does not answer, and wants it to end, to say so, and to
// have an exit code. What a minute more would show, no operator waits for.
func (n gpuHost) mute(exit int, args ...string) {
	n.t.Helper()
	r := n.Exec(append([]string{"timeout", "--signal=KILL", "300", "gpuadm"}, args...)...)
	check.That(n.t, r.Exit == exit, "gpuadm %s, want exit %d: %s", strings.Join(args, " "), exit, r)
	if exit != 0 {
		check.Has(n.t, r.Stdout+r.Stderr, "does not answer", "gpuadm %s says", strings.Join(args, " "))
	}
	n.t.Logf("%s", r)
}

// killsPod kills the process of the DaemonSet's container, which kubelet then starts again.
func (n gpuHost) killsPod() {
	n.t.Helper()
	n.Must("sh", "-c",
		`for p in /proc/[0-9]*; do [ "$(tr '\0' ' ' <$p/cmdline 2>/dev/null)" = `+
			`"/usr/local/sbin/gpuadm daemonset --every 1s " ] && kill -9 ${p#/proc/}; done; true`)
}
