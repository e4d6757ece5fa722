// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// joined is the working machine in a cluster: its kubelet's name there is another one than the machine's, as in clouds.
func joined(t *testing.T, breaks func(*recorded)) (*simhost.Node, *kubesim.Server) {
	t.Helper()
	r := working(t)
	r.put("proc/sys/kernel/hostname", "gpu-1\n")
	r.put("etc/kubernetes/kubelet.conf mode=0600", `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://api.example:6443"}}], users: [{name: u, user: {token: "planted-kubelet"}}]}
`)
	if breaks != nil {
		breaks(r)
	}
	n, s := r.node(), kubesim.New(kubesim.User{})
	s.Token("planted-kubelet", kubesim.Node("gpu-1.internal"))
	s.AddNode("gpu-1.internal", map[string]string{"kubernetes.io/os": "linux"})
	offers(s, "8")
	s.AddPod(pod("kube-proxy-4x7qp"))
	n.Serve("api.example:6443", s)
	return n, s
}

func pod(name string) kubesim.Object {
	return kubesim.Object{"metadata": kubesim.Object{"name": name, "namespace": "kube-system"}, "spec": kubesim.Object{"nodeName": "gpu-1.internal"}}
}

func offers(s *kubesim.Server, gpus string) {
	s.EditNode("gpu-1.internal", func(n kubesim.Object) {
		n["status"] = kubesim.Object{"allocatable": kubesim.Object{"cpu": "96", "nvidia.com/gpu": gpus}, "capacity": kubesim.Object{"nvidia.com/gpu": "8"}}
	})
}

func condition(kind, status, message string) func(*kubesim.Server) {
	return func(s *kubesim.Server) {
		s.EditNode("gpu-1.internal", func(n kubesim.Object) {
			of := kubesim.Object{"type": kind, "status": status, "message": message}
			n["status"] = kubesim.Object{"allocatable": kubesim.Object{"nvidia.com/gpu": "8"}, "conditions": []any{of}}
		})
	}
}

func taints(s *kubesim.Server, list ...any) {
	s.EditNode("gpu-1.internal", func(n kubesim.Object) { n["spec"] = kubesim.Object{"taints": list} })
}

func plugin(r *recorded) { r.put("proc/4711/comm", "nvidia-device-p\n") }

// TestNode asks a simulated API server: what it says of this machine's Node is found, and nothing else.
func TestNode(t *testing.T) {
	custom := kubesim.Object{"key": "dedicated", "value": "training", "effect": "NoSchedule"}
	gpu := kubesim.Object{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
	for _, c := range []struct {
		name   string
		breaks func(*recorded)
		says   func(*kubesim.Server)
		want   string // root causes
		what   string // of one of them
	}{
		{name: "well", breaks: plugin, says: func(s *kubesim.Server) { taints(s, custom) }},
		{name: "no plugin is installed, no taint", says: func(s *kubesim.Server) { offers(s, "0") }},
		{"deleted", nil, func(s *kubesim.Server) { s.DeleteNode("gpu-1.internal") }, "KUB-008", "kubelet runs, and the cluster has no Node gpu-1.internal"},
		{"deleted, kubelet does not run", func(r *recorded) { r.fails("kubelet") }, func(s *kubesim.Server) { s.DeleteNode("gpu-1.internal") }, "KUB-001", ""},
		{"taint", nil, func(s *kubesim.Server) { taints(s, gpu, custom) }, "KUB-009", "the Node gpu-1.internal has the taint dedicated=training:NoSchedule, and no pod of a device plugin"},
		{name: "taints that a plugin tolerates", says: func(s *kubesim.Server) {
			taints(s, gpu, kubesim.Object{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}, kubesim.Object{"key": "a", "effect": "PreferNoSchedule"})
		}},
		{name: "taint, and a plugin of another name", says: func(s *kubesim.Server) {
			taints(s, custom)
			s.AddPod(pod("nvidia-device-plugin-daemonset-abcde"))
		}},
		{"plugin offers none", plugin, func(s *kubesim.Server) { offers(s, "0") }, "KUB-010", "the Node gpu-1.internal offers 0 of the driver's 8 GPUs, and a device plugin runs"},
		{"plugin has one unhealthy", plugin, func(s *kubesim.Server) { offers(s, "7") }, "KUB-010", "offers 7 of the driver's 8"}, // https://github.com/NVIDIA/k8s-device-plugin/issues/75
		{name: "one is withheld on purpose", breaks: plugin, says: func(s *kubesim.Server) {
			s.EditNode("gpu-1.internal", func(n kubesim.Object) {
				n["status"] = kubesim.Object{"allocatable": kubesim.Object{"nvidia.com/gpu": "7"}, "capacity": kubesim.Object{"nvidia.com/gpu": "7"}}
			})
		}},
		{"PLEG, https://github.com/kubernetes/kubernetes/issues/45419", plugin, condition("Ready", "False", "PLEG is not healthy: pleg was last seen active 3m3.9s ago; threshold is 3m0s"), "KUB-016", "Ready=False: PLEG is not healthy"},
		{"runtime is down, https://github.com/kubernetes/kubernetes/issues/72533", nil, condition("Ready", "Unknown", "Kubelet stopped posting node status."), "KUB-016", "Ready=Unknown: Kubelet stopped posting"},
		{"disk pressure", plugin, condition("DiskPressure", "True", "kubelet has disk pressure"), "KUB-016", "DiskPressure=True"},
		{name: "no pressure", breaks: plugin, says: condition("MemoryPressure", "False", "kubelet has sufficient memory available")},
		{name: "shared", breaks: plugin, says: func(s *kubesim.Server) {
			s.EditNode("gpu-1.internal", func(n kubesim.Object) {
				n["status"] = kubesim.Object{"allocatable": kubesim.Object{"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "16"}}
			})
		}},
		{"one less, for a GPU is broken", func(r *recorded) {
			plugin(r)
			r.gpu(1, "remapfails = true")
		}, func(s *kubesim.Server) { offers(s, "7") }, "GPU-007", ""},
		{"one less, and a program failed", func(r *recorded) {
			plugin(r)
			r.says("NVRM: Xid (PCI:0000:5d:00): 13, pid=1, name=python, words")
		}, func(s *kubesim.Server) { offers(s, "7") }, "KUB-010", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, s := joined(t, c.breaks)
			c.says(s)
			report := examine(t, n)
			got := codes(report)
			check.That(t, got == c.want && len(report.Unread) == 0, "root causes %q, want %q: %v %v", got, c.want, report.Causes, report.Unread)
			if c.what != "" && len(report.Causes) == 1 && !strings.Contains(report.Causes[0].Found[0].What, c.what) {
				t.Errorf("%q, want %q", report.Causes[0].Found[0].What, c.what)
			}
			check.That(t, n.Touches() == 0, "doctor touched the machine %d times", n.Touches())
		})
	}
}

// TestCordoned: an operator cordons on purpose, so that it is a note.
func TestCordoned(t *testing.T) {
	n, s := joined(t, nil)
	s.EditNode("gpu-1.internal", func(n kubesim.Object) { n["spec"] = kubesim.Object{"unschedulable": true} })
	report := examine(t, n)
	check.That(t, codes(report) == "" && slices.ContainsFunc(report.Notes, func(f Found) bool { return f.Code == "KUB-011" }), "%v %v", report.Causes, report.Notes)
}

// TestSilentServer: an API server that does not answer, or refuses, is no fault of the machine, and is named as not checked.
func TestSilentServer(t *testing.T) {
	for name, f := range map[string]kubesim.Fault{
		"hangs": {Hang: true, Times: -1}, "busy": {Status: 503, Times: -1}, "who": {On: "POST", Status: 404, Times: -1},
		"refuses the credentials": {Status: 401, Times: -1},
	} {
		t.Run(name, func(t *testing.T) {
			n, s := joined(t, nil)
			s.Fail(f)
			report := examine(t, n)
			check.That(t, codes(report) == "" && len(report.Unread) == 1, "%v %v", report.Causes, report.Unread)
		})
	}
}

// TestNestedPlugin: the plugins of a kubelet in a container are not the machine's.
func TestNestedPlugin(t *testing.T) {
	for ids, want := range map[string]string{"4711\t400\t1": "", "4711\t1": "KUB-003", "4711": "KUB-003"} {
		r := working(t)
		r.put("proc/4242/comm", "nvidia-device-p\n")
		r.put("proc/4242/status", "Name:\tnvidia-device-p\nNSpid:\t4242\t1\n")
		plugin(r)
		r.put("proc/4711/status", "Name:\tnvidia-device-p\nNSpid:\t"+ids+"\n")
		check.Equal(t, codes(examine(t, r.node())), want, "%q: root causes", ids)
	}
}

// TestRelabelled: what restorecon and chmod change of a file is not read by a daemon; what mv and an editor change is.
func TestRelabelled(t *testing.T) {
	const config = "/var/lib/kubelet/config.yaml"
	for name, c := range map[string]struct {
		change func(*simhost.Node) error
		want   string
	}{
		"relabelled": {func(n *simhost.Node) error { return n.SetAttr(config, host.Attr{Mode: 0o600}) }, ""},
		"written": {func(n *simhost.Node) error {
			return n.WriteFile(config, []byte("kind: KubeletConfiguration\n"), host.Attr{Mode: 0o644})
		}, "KUB-007"},
	} {
		n := working(t).node()
		n.Advance(time.Hour)
		must.OK(t, c.change(n))
		n.Advance(time.Hour)
		check.Equal(t, codes(examine(t, n)), c.want, "%s: root causes", name)
	}
}

// TestPartitionsOfSpec: partitions are compared with node.toml, where it asks for some.
func TestPartitionsOfSpec(t *testing.T) {
	for text, want := range map[string]string{
		"format = 1\n": "",
		"format = 1\n[[mig.gpu]]\nlayout = {\"1g.10gb\" = 7}\n": "MIG-003",
		"format = 1\n[[mig.gpu]]\nenabled = false\n":            "",
	} {
		s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)}))(t)
		n := working(t).node()
		report := Examine(t.Context(), n, s)
		check.That(t, codes(report) == want && n.Touches() == 0, "%s root causes %q, want %q: %v %v", text, codes(report), want, report.Causes, report.Unread)
	}
}

// criStatus is a StatusResponse of CRI (k8s.io/cri-api, pkg/apis/runtime/v1/api.proto), with what containerd says before it has found a
// network configuration: https://github.com/containerd/containerd/issues/8419; internal/cri/server/status.go there.
func criStatus(runtime, network byte) []byte {
	field := func(n int, data string) string { return string([]byte{byte(n<<3 | 2), byte(len(data))}) + data }
	of := func(kind string, ready byte, reason, words string) string {
		text := field(1, kind) + "\x10" + string(ready)
		if ready == 0 {
			text += field(3, reason) + field(4, words)
		}
		return field(1, text)
	}
	return []byte(field(1, of("RuntimeReady", runtime, "NotReady", "broken")+of("NetworkReady", network, "NetworkPluginNotReady", "Network plugin returns error: cni plugin not initialized")))
}

// TestEngineSays is of what an engine that runs answers, or does not, on a machine where no add-on for networks ever made /etc/cni/net.d.
func TestEngineSays(t *testing.T) {
	for name, c := range map[string]struct {
		says func(method string, _ []byte) ([]byte, error)
		want string
	}{
		"no network":        {func(string, []byte) ([]byte, error) { return criStatus(1, 0), nil }, "KUB-013"},
		"ready":             {func(string, []byte) ([]byte, error) { return criStatus(1, 1), nil }, ""},
		"not ready":         {func(string, []byte) ([]byte, error) { return criStatus(0, 0), nil }, "RUN-013"},
		"stopped":           {func(string, []byte) ([]byte, error) { return nil, errors.New("no answer within 2s") }, "RUN-013"},
		"no such condition": {func(string, []byte) ([]byte, error) { return nil, nil }, ""},
	} {
		n, _ := joined(t, nil)
		n.Daemon("/run/containerd/containerd.sock", c.says)
		r := examine(t, n)
		got := codes(r)
		check.That(t, got == c.want, "%s: %q, want %q: %v", name, got, c.want, r.Causes)
	}
}
