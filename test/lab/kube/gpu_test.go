// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	specFile   = "/etc/gpuadm/node.toml"
	configFile = "/etc/gpuadm/kubelet.yaml"
	state      = "/var/lib/gpuadm"
	gpuReady   = "nvidia.com/GPUReady"
	startup    = "startup-taint.cluster-autoscaler.kubernetes.io/gpu=pending:NoSchedule"
	// count is how many GPUs a host here has.
	count = 2
)

// gpuHost is a host on the cluster's network that knows nothing of the cluster: a container engine,
// kubelet's program, GPUs that are fake and a gpuadm that is not.
type gpuHost struct {
	*kube.Node
	c *kube.T
	t *testing.T
}

func bootGPU(t *testing.T, c *kube.T, name, dist string) gpuHost {
	t.Helper()
	parts := fakenvml.Build(t)
	n := gpuHost{c.Boot(name, lab.Options{Dist: dist, GPUs: count}), c, t}
	triple := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	for from, to := range map[string]string{
		parts.Library:   "/usr/lib/" + triple + "/" + fakenvml.Soname,
		parts.CUDA:      "/usr/lib/" + triple + "/" + fakenvml.CUDASoname,
		parts.Tool:      "/usr/local/bin/fakenvml",
		parts.NvidiaSMI: "/usr/bin/nvidia-smi",
	} {
		data := must.Get(os.ReadFile(from))(t)
		n.Put(to, string(data), 0o755)
	}

	const state = "/var/lib/fakenvml.state"
	n.Must("env", "FAKENVML_STATE="+state, "fakenvml", "new", "--gpus", fmt.Sprintf("H100-80:%d", count))
	n.Put("/etc/systemd/system/fake-gpus.service", `[Unit]
Description=the fake GPUs see a boot
DefaultDependencies=no
After=local-fs.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/ln -sf `+state+` /run/fakenvml.state
ExecStart=/bin/ln -sf null /dev/nvidia-uvm
ExecStart=/usr/local/bin/fakenvml reboot
[Install]
WantedBy=sysinit.target
`, 0o644)
	n.Must("systemctl", "enable", "--quiet", "--now", "fake-gpus.service")
	n.Put(configFile, kube.LabConfigFile(), 0o644)
	return n
}

// prepared has gpuadm make the spec on a host with kubelet's package, and kubeadm join it then. It
// returns the token.
func (n gpuHost) prepared(parts ...string) (token string) {
	n.t.Helper()
	n.Packages()
	n.wants(parts...)
	r := n.Exec("gpuadm", "apply", "--install")
	must.That(n.t, r.Exit == 0, "apply: %s", r)
	return n.Join()
}

// wants writes the spec.
func (n gpuHost) wants(parts ...string) {
	n.t.Helper()
	n.Put(specFile, "format = 1\n"+strings.Join(parts, ""), 0o644)
}

// gpuadm runs it and wants an exit code, and words.
func (n gpuHost) gpuadm(exit int, args []string, words ...string) lab.Result {
	n.t.Helper()
	r := n.Exec(append([]string{"gpuadm"}, args...)...)
	check.That(n.t, r.Exit == exit, "gpuadm %s, want exit %d: %s", strings.Join(args, " "), exit, r)
	for _, w := range words {
		check.That(n.t, strings.Contains(r.Stdout+r.Stderr, w), "gpuadm %s does not say %q: %s", strings.Join(args, " "), w, r)
	}
	return r
}

// settled applies until nothing is waited for any more.
func (n gpuHost) settled(args ...string) {
	n.t.Helper()
	n.c.Until("gpuadm apply "+strings.Join(args, " ")+" has nothing to wait for", func() string {
		r := n.Exec(append([]string{"gpuadm", "apply"}, args...)...)
		switch r.Exit {
		case 0:
			return ""
		case 75:
			return r.String()
		}

		n.t.Fatal(r)
		return ""
	})
}

// condition waits until the node's condition GPUReady has this status, and returns it.
func (n gpuHost) condition(status string) kube.Object {
	n.t.Helper()
	var is kube.Object
	n.c.Until(n.Name+" has the condition", func() string {
		if is = kube.Condition(n.Object(), gpuReady); is["status"] == status {
			return ""
		}
		return fmt.Sprintf("%v, not %s", is, status)
	})
	return is
}

// active waits until a unit is in this state.
func (n gpuHost) active(unit, want string) {
	n.t.Helper()
	n.c.Until(unit+" is "+want, func() string {
		if is := n.Property(unit, "ActiveState"); is != want {
			return "it is " + is
		}
		return ""
	})
}

// plain makes a pod that wants nothing, tolerates nothing, and may be on this node alone.
func (n gpuHost) plain(name string) {
	n.t.Helper()
	n.c.Cleanup(func() {
		n.c.Delete("/api/v1/namespaces/default/pods/" + name + "?gracePeriodSeconds=0")
	})
	n.c.Apply(kube.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": kube.Object{"name": name, "namespace": "default"},
		"spec": kube.Object{
			"nodeSelector": kube.Object{"kubernetes.io/hostname": n.Name}, "terminationGracePeriodSeconds": 1,
			"automountServiceAccountToken": false,
			"containers":                   []kube.Object{{"name": "main", "image": lab.PauseImage, "imagePullPolicy": "Never"}},
		},
	})
}

// landed says on which node a pod is, "" for none yet, and since when.
func (n gpuHost) landed(name string) (node string, since time.Time) {
	n.t.Helper()
	o := n.c.Get("/api/v1/namespaces/default/pods/" + name)
	since, _ = time.Parse(time.RFC3339, kube.Text(kube.Condition(o, "PodScheduled"), "lastTransitionTime"))
	return kube.Text(o, "spec", "nodeName"), since
}

// user is who the node's kubelet is to the API server.
func (n gpuHost) user() string { return "system:node:" + n.Name }

// TestLabKubeCUDA: while CUDA does not start no kubelet starts, however green NVML is; a CUDA that
// hangs is ended; and once it has started in this boot it is not started again.
func TestLabKubeCUDA(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "cuda", "trixie")
	n.Packages()
	n.wants("[node]\n")
	const wrong = "/run/fakenvml.state.cuda" // gone after a boot
	for _, c := range []struct{ goes, says string }{
		{"init 802", "cuInit answers 802 (CUDA_ERROR_SYSTEM_NOT_READY): the fabric manager does not run, or the NVLink fabric is not ready"},
		{"init 999", "cuInit answers 999 (CUDA_ERROR_UNKNOWN)"},
		{"crash", "it ended without an answer: signal: segmentation fault"},
		{"hang", "it gave no answer within 10s and was killed"},
	} {
		n.Put(wrong, c.goes+"\n", 0o644)
		n.gpuadm(1, []string{"apply", "--install"}, c.says)
		is := n.Property("kubelet.service", "ActiveState")
		must.That(t, is != "active", "%s: kubelet is %s", c.goes, is)
	}

	left := n.Exec("pgrep", "-f", "start-cuda")
	check.That(t, left.Exit != 0, "processes are left: %s", left)
	n.Must("rm", wrong)
	n.Must("rm", "/dev/nvidia-uvm")
	n.gpuadm(1, []string{"apply"}, "/dev/nvidia-uvm cannot be opened: no such file or directory", "nvidia-modprobe -u -c 0")
	n.Must("ln", "-s", "null", "/dev/nvidia-uvm")
	n.settled()
	n.Join()
	n.settled()
	n.Ready()
	n.condition("True")

	t.Log("the same boot: nothing is started, so nothing can crash")
	n.Put(wrong, "crash\n", 0o644)
	n.gpuadm(0, []string{"apply"}, "Nothing to do.")
	t.Log("the driver is another one")
	n.Must("fakenvml", "driver", "--version", "590.48.01")
	r := n.Exec("gpuadm", "apply")
	check.That(t, r.Exit == 1 && strings.Contains(r.String(), "segmentation fault"), "another driver: %s", r)
	t.Log("a boot")
	n.Must("fakenvml", "driver", "--version", "580.95.05")
	n.Reboot()
	n.settled()
	n.condition("True")
}
