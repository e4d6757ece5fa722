// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// whole is a spec for partitioned GPUs, without a device plugin.
const whole = "[runtime]\n[[mig.gpu]]\nlayout = { \"3g.40gb\" = 2 }\n[node]\n"

// TestLabKubeOrdering: where the boot unit holds kubelet back, no pod starts in a new boot before
// the GPUs are ready, after a reboot and after a power loss, and kubelet comes once they do: by the
// boot unit's next attempt, or by an apply by hand.
func TestLabKubeOrdering(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "ordering", "trixie")
	n.prepared(whole)
	n.settled()
	n.Ready()
	n.seenReady()
	taints := kube.Taints(n.Object())
	check.That(t, len(taints) == 0, "kubelet waits, so there is no startup taint: %v", taints)

	t.Log("a reboot with GPUs that do not answer")
	n.breaks()
	n.Reboot()
	n.plain("ordered")
	n.active("gpuadm.service", "failed")
	n.held("ordered")
	n.Must("fakenvml", "driver", "--init", "SUCCESS")
	n.settled()
	n.active("kubelet.service", "active")
	n.back("ordered")
	r := n.gpuadm(0, []string{"apply"})
	check.That(t, r.Stdout == "Nothing to do.\n", "after the repair: %s", r)

	t.Log("a power loss with GPUs that do not answer at first")
	n.breaks()
	n.Put("/etc/systemd/system/fix.service", `[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'until journalctl --boot --unit=gpuadm.service | grep -q "attempt 1 of 3 failed"; do sleep 0.2; done'
ExecStart=/usr/local/bin/fakenvml driver --init SUCCESS
[Install]
WantedBy=multi-user.target
`, 0o644)
	n.Must("systemctl", "enable", "--quiet", "fix.service")
	n.PowerLoss()
	check.Has(t, n.Journal("gpuadm.service"), "attempt 1 of 3 failed", "the GPUs answered the first try:")
	n.active("kubelet.service", "active")
	n.plain("lost")
	n.back("lost")
	n.ordered()
}

// breaks makes the driver one that no GPU answers.
func (n gpuHost) breaks() {
	n.t.Helper()
	n.condition("True")
	n.Must("fakenvml", "driver", "--init", "DRIVER_NOT_LOADED")
}

// held wants kubelet not to run, and so a pod that the scheduler gave this node by yesterday's Node
// not to either.
func (n gpuHost) held(pod string) {
	n.t.Helper()
	is := n.Property("kubelet.service", "ActiveState")
	check.That(n.t, is != "active" && n.MainPID("kubelet.service") == 0, "kubelet is %s", is)
	o := n.c.Get("/api/v1/namespaces/default/pods/" + pod)
	if kube.Text(o, "status", "phase") != "Pending" || kube.Text(o, "status", "startTime") != "" {
		n.t.Errorf("pod %s: %v", pod, kube.At(o, "status"))
	}
}

// back wants a node and its pod to run, after the GPUs were found ready in this boot.
func (n gpuHost) back(pod string) {
	n.t.Helper()
	n.again()
	n.c.PodReady("default", pod)
}

// again wants a node whose GPUs were found ready in this boot.
func (n gpuHost) again() {
	n.t.Helper()
	n.Ready()
	n.c.Until(n.Name+" is called ready in this boot", func() string {
		is := kube.Condition(n.Object(), gpuReady)
		if is["status"] == "True" && strings.HasSuffix(kube.Text(is, "message"), n.BootID()[28:]) {
			return ""
		}
		return fmt.Sprint(is)
	})
}

// ordered wants the units of this boot to have come one after another.
func (n gpuHost) ordered() {
	n.t.Helper()
	n.heldBack()
	kubelet, ready := n.at("kubelet.service", "ExecMainStartTimestampMonotonic"), n.at("gpuadm-ready.service", "ExecMainStartTimestampMonotonic")
	check.That(n.t, kubelet <= ready, "kubelet started at %d µs, gpuadm-ready.service at %d", kubelet, ready)
}

// heldBack wants gpuadm.service to have been done before kubelet started in this boot.
func (n gpuHost) heldBack() {
	n.t.Helper()
	n.active("gpuadm-ready.service", "active")
	converged, kubelet := n.at("gpuadm.service", "ExecMainExitTimestampMonotonic"), n.at("kubelet.service", "ExecMainStartTimestampMonotonic")
	check.That(n.t, converged <= kubelet, "gpuadm.service was done at %d µs, kubelet started at %d", converged, kubelet)
}

// at is a moment of a unit, in µs since the kernel started.
func (n gpuHost) at(unit, property string) int {
	n.t.Helper()
	us, err := strconv.Atoi(n.Property(unit, property))
	check.That(n.t, err == nil && us != 0, "%s of %s: %d, %v", property, unit, us, err)
	return us
}

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

// TestLabKubeGround proves the lab: a host's kubelet joins by a bootstrap token, counts devices,
// runs a pod with one, and is ready again after a reboot and after a power loss.
func TestLabKubeGround(t *testing.T) {
	for _, dist := range lab.DistsFor(t) {
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
			pod(c, "gpu-"+dist, n.Name, "nvidia.com/gpu")
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
func pod(c *kube.T, name, node, resource string) {
	c.Helper()
	c.Cleanup(func() {
		c.Delete("/api/v1/namespaces/default/pods/" + name + "?gracePeriodSeconds=0")
	})
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
				"resources": kube.Object{"limits": kube.Object{resource: "1"}},
			}},
		},
	})
}
