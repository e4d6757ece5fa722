// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// joined is the working machine in a cluster, without a device plugin.
func joined(t *testing.T, breaks func(*incident.Machine)) (*simhost.Node, *incident.World) {
	t.Helper()
	w := incident.Joined(t, false)
	if breaks != nil {
		breaks(w.Machine)
	}
	return w.Node(), w
}

func condition(kind, status, message string) func(*incident.World) {
	return func(w *incident.World) { w.Condition(kind, status, message) }
}

func taints(w *incident.World, list ...any) {
	w.Server.EditNode("gpu-1.internal", func(n kubesim.Object) {
		n["spec"] = kubesim.Object{"taints": list}
	})
}

func plugin(r *incident.Machine) { r.Put("proc/4711/comm", "nvidia-device-p\n") }

// TestNode asks a simulated API server: what it says of this machine's Node is found, and nothing
// else.
func TestNode(t *testing.T) {
	custom := kubesim.Object{"key": "dedicated", "value": "training", "effect": "NoSchedule"}
	gpu := kubesim.Object{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
	for _, c := range []struct {
		name   string
		breaks func(*incident.Machine)
		says   func(*incident.World)
		want   string // root causes
		what   string // of one of them
	}{
		{name: "well", breaks: plugin, says: func(s *incident.World) { taints(s, custom) }},
		{
			"no plugin is installed, no taint", nil, func(s *incident.World) { s.Offers(0, 8) }, "KUB-021",
			"no device plugin and no DRA driver runs on the Node gpu-1.internal",
		},
		{
			"the plugin of network cards alone", nil, func(s *incident.World) {
				s.Offers(0, 8)
				s.Server.AddPod(incident.Pod("aws-efa-k8s-device-plugin-abcde"))
			}, "KUB-021", "no device plugin and no DRA driver runs on the Node gpu-1.internal",
		},
		{
			"the controller of a DRA driver alone", nil, func(s *incident.World) {
				s.Offers(0, 8)
				s.Server.AddPod(incident.Pod("nvidia-dra-driver-gpu-controller-7c9d8b6f5-x2x4k"))
			}, "KUB-021", "no device plugin and no DRA driver runs on the Node gpu-1.internal",
		},
		{"deleted", nil, func(s *incident.World) { s.Server.DeleteNode("gpu-1.internal") }, "KUB-008", "kubelet runs, and the cluster has no Node gpu-1.internal"},
		{"deleted, kubelet does not run", func(r *incident.Machine) { r.Fails("kubelet") }, func(s *incident.World) { s.Server.DeleteNode("gpu-1.internal") }, "KUB-001", ""},
		{"taint", nil, func(s *incident.World) { taints(s, gpu, custom) }, "KUB-009", "the Node gpu-1.internal has the taint dedicated=training:NoSchedule, and no pod of a device plugin"},
		{name: "taints that a plugin tolerates", says: func(s *incident.World) {
			taints(s, gpu, kubesim.Object{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}, kubesim.Object{"key": "a", "effect": "PreferNoSchedule"})
		}},
		{name: "taint, and a plugin of another name", says: func(s *incident.World) {
			taints(s, custom)
			s.Server.AddPod(incident.Pod("nvidia-device-plugin-daemonset-abcde"))
		}},
		{"plugin offers none", plugin, func(s *incident.World) { s.Offers(0, 8) }, "KUB-010", "the Node gpu-1.internal offers none of its 8 GPUs, though a device plugin runs"},
		{"plugin has one unhealthy", plugin, func(s *incident.World) { s.Offers(7, 8) }, "KUB-010", "offers 7 of its 8"}, // https://github.com/NVIDIA/k8s-device-plugin/issues/75
		{"the same, beside network cards", plugin, func(s *incident.World) {
			s.Offers(7, 8)
			s.Server.EditNode("gpu-1.internal", func(n kubesim.Object) {
				n["status"].(kubesim.Object)["allocatable"].(kubesim.Object)["nvidia.com/hostdev"] = "8"
			})
		}, "KUB-010", "offers 7 of its 8"},
		{"network cards, and no plugin", nil, func(s *incident.World) {
			s.Server.EditNode("gpu-1.internal", func(n kubesim.Object) {
				offers := kubesim.Object{"nvidia.com/gpu": "0", "nvidia.com/hostdev": "8"}
				n["status"] = kubesim.Object{"allocatable": offers}
			})
		}, "KUB-021", "no device plugin and no DRA driver runs on the Node gpu-1.internal"},
		{name: "one is withheld on purpose", breaks: plugin, says: func(s *incident.World) {
			s.Server.EditNode("gpu-1.internal", func(n kubesim.Object) {
				n["status"] = kubesim.Object{"allocatable": kubesim.Object{"nvidia.com/gpu": "7"}, "capacity": kubesim.Object{"nvidia.com/gpu": "7"}}
			})
		}},
		{"PLEG, https://github.com/kubernetes/kubernetes/issues/45419", plugin, condition("Ready", "False", "PLEG is not healthy: pleg was last seen active 3m3.9s ago; threshold is 3m0s"), "KUB-016", "Ready=False: PLEG is not healthy"},
		{"runtime is down, https://github.com/kubernetes/kubernetes/issues/72533", nil, condition("Ready", "Unknown", "Kubelet stopped posting node status."), "KUB-016", "Ready=Unknown: Kubelet stopped posting"},
		{"disk pressure", plugin, condition("DiskPressure", "True", "kubelet has disk pressure"), "KUB-016", "DiskPressure=True"},
		{name: "no pressure", breaks: plugin, says: condition("MemoryPressure", "False", "kubelet has sufficient memory available")},
		{name: "shared", breaks: plugin, says: func(s *incident.World) {
			s.Server.EditNode("gpu-1.internal", func(n kubesim.Object) {
				n["status"] = kubesim.Object{"allocatable": kubesim.Object{"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "16"}}
			})
		}},
		{"one less, for a GPU is broken", func(r *incident.Machine) {
			plugin(r)
			r.GPU(1, "remapfails = true")
		}, func(s *incident.World) { s.Offers(7, 8) }, "GPU-007", ""},
		{"one less, and a program failed", func(r *incident.Machine) {
			plugin(r)
			r.Says("NVRM: Xid (PCI:0000:5d:00): 13, pid=1, name=python, words")
		}, func(s *incident.World) { s.Offers(7, 8) }, "KUB-010", ""},
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

// TestLogOfThePlugin: of a plugin that holds a GPU back doctor names the log of its own pod, beside
// those of a DRA driver and the others of the plugin's chart.
func TestLogOfThePlugin(t *testing.T) {
	n, w := joined(t, plugin)
	w.Offers(7, 8)
	for _, pod := range []string{
		"dra-driver-nvidia-gpu-kubelet-plugin-x2x4k",
		"nvdp-nvidia-device-plugin-gpu-feature-discovery-4c8tn",
		"nvdp-nvidia-device-plugin-mps-control-daemon-9k2lp",
		"nvdp-nvidia-device-plugin-x7f2q",
	} {
		w.Server.AddPod(incident.Pod(pod))
	}
	r := examine(t, n)
	must.That(t, codes(r) == "KUB-010", "root causes %v", r.Causes)
	const itself = "kubectl -n kube-system logs nvdp-nvidia-device-plugin-x7f2q; " +
		"kubectl -n kube-system delete pod nvdp-nvidia-device-plugin-x7f2q"
	check.List(t, r.Causes[0].Commands, []string{itself}, "to type")
}

// TestCordoned: an operator cordons on purpose, so that it is a note.
func TestCordoned(t *testing.T) {
	n, s := joined(t, nil)
	s.Server.EditNode("gpu-1.internal", func(n kubesim.Object) {
		n["spec"] = kubesim.Object{"unschedulable": true}
	})
	report := examine(t, n)
	check.That(t, codes(report) == "" && slices.ContainsFunc(report.Notes, func(f Found) bool {
		return f.Code == "KUB-011"
	}), "%v %v", report.Causes, report.Notes)
}

// TestSilentServer: an API server that does not answer, or refuses, is not a fault of the machine, and
// is named as not checked.
func TestSilentServer(t *testing.T) {
	for name, f := range map[string]kubesim.Fault{"busy": {Status: 503, Times: -1}, "who": {On: "POST", Status: 404, Times: -1}} {
		t.Run(name, func(t *testing.T) {
			n, s := joined(t, nil)
			s.Server.Fail(f)
			unread(t, n)
		})
	}

	t.Run("hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n, _ := joined(t, nil)
			unread(t, through{n, roundTrip(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})})
		})
	})
}

// TestSilentServerOfPods: pods that the API server does not list were not checked, unless kubelet
// may not list them.
func TestSilentServerOfPods(t *testing.T) {
	for status, want := range map[int]State{501: Unknown, 403: Healthy} {
		n, s := joined(t, plugin)
		s.Server.Fail(kubesim.Fault{On: "GET /api/v1/pods", Status: status, Times: -1})
		report := examine(t, n)
		check.That(t, report.State == want, "%d: %v, unread %v", status, report.Causes, report.Unread)
	}
}

// unread wants the API server as the one part that cannot be read.
func unread(t *testing.T, v host.View) {
	t.Helper()
	report := examine(t, v)
	check.That(t, codes(report) == "" && len(report.Unread) == 1, "%v %v", report.Causes, report.Unread)
}

// through is a machine whose requests go another way.
type through struct {
	host.View
	way http.RoundTripper
}

func (t through) AskWeb(host.Web) (http.RoundTripper, error) { return t.way, nil }

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type endless struct{ ctx context.Context }

func (d endless) Read([]byte) (int, error) { <-d.ctx.Done(); return 0, d.ctx.Err() }
func (d endless) Close() error             { return nil }

// TestDrips: an API server that begins each answer, and does not end it, is noted, and holds
// nothing up.
func TestDrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := joined(t, func(r *incident.Machine) { r.Fails("nvidia-persistenced") })
		r := examine(t, through{n, roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: 200,
				Header:     http.Header{},
				Body:       endless{r.Context()},
			}, nil
		})})
		check.That(t, codes(r) == "GPU-010" && len(r.Unread) == 0 && len(r.Notes) == 1 && r.Notes[0].Code == "KUB-019", "%v %v %v", r.Causes, r.Unread, r.Notes)
	})
}

// TestNoNetwork: an API server that no packet reaches is not waited for.
func TestNoNetwork(t *testing.T) {
	n, _ := joined(t, nil)
	r := examine(t, through{n, &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}})
	check.That(t, codes(r) == "" && strings.Contains(fmt.Sprint(r.Unread), "no connection within 750ms"), "%v %v", r.Causes, r.Unread)
}

// TestBeforeReset: the pods, the device plugin and the driver's daemons are off the GPU before it
// is reset, and come again.
func TestBeforeReset(t *testing.T) {
	n, w := joined(t, func(r *incident.Machine) {
		r.GPU(0, `recovery = "reset"`)
		r.Put("proc/950/comm", "nvidia-persiste\n")
		r.Put("proc/950/cgroup", "0::/system.slice/nvidia-persistenced.service\n")
		r.Put("proc/950/fd/3 link=/dev/nvidiactl", "")
		r.Put("dev/nvidiactl device=195:255 mode=0666", "")
		r.Put("proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n")
	})
	w.Server.AddPod(incident.Pod("nvidia-device-plugin-daemonset-abcde"))
	r := examine(t, n)
	must.That(t, codes(r) == "GPU-011", "%v", r.Causes)
	check.List(t, r.Causes[0].Commands, []string{
		"kubectl drain gpu-1.internal --ignore-daemonsets --delete-emptydir-data", "kubectl taint node gpu-1.internal gpu-reset=:NoExecute",
		"kubectl -n kube-system wait --for=delete pod/nvidia-device-plugin-daemonset-abcde --timeout=2m", "sudo systemctl stop nvidia-persistenced.service",
		"sudo nvidia-smi --gpu-reset -i 0000:18:00.0", "sudo systemctl start nvidia-persistenced.service", "kubectl taint node gpu-1.internal gpu-reset-",
	}, "the fix:")
}

// TestClockByCertificate: the clock is behind a server's certificate that is new
// (https://github.com/k0sproject/k0s/issues/3732), or ahead of a healthy one.
func TestClockByCertificate(t *testing.T) {
	for code, from := range map[string]time.Duration{"SYS-003": 10 * time.Hour, "SYS-007": -10 * time.Hour} {
		n, _ := joined(t, nil)
		cert := &x509.Certificate{
			NotBefore: n.Now().Add(from),
			NotAfter:  n.Now().Add(from + time.Hour),
		}
		r := examine(t, through{n, roundTrip(func(*http.Request) (*http.Response, error) {
			return nil, &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{
				Cert:   cert,
				Reason: x509.Expired,
			}}
		})})
		check.That(t, codes(r) == code && strings.Contains(r.Causes[0].Found[0].What, "the API server's certificate does not hold"), "%s: %v %v", code, r.Causes, r.Unread)
	}
}

// TestNestedPlugin: the plugins of a kubelet in a container are not the machine's.
func TestNestedPlugin(t *testing.T) {
	for ids, want := range map[string]string{"4711\t400\t1": "", "4711\t1": "KUB-003", "4711": "KUB-003"} {
		r := incident.Working(t)
		r.Put("proc/4242/comm", "nvidia-device-p\n")
		r.Put("proc/4242/status", "Name:\tnvidia-device-p\nNSpid:\t4242\t1\n")
		plugin(r)
		r.Put("proc/4711/status", "Name:\tnvidia-device-p\nNSpid:\t"+ids+"\n")
		check.Equal(t, codes(examine(t, r.Node())), want, "%q: root causes", ids)
	}
}

// TestRelabelled: what restorecon and chmod change of a file is not read by a daemon; what mv and
// an editor change is.
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
		n := incident.Working(t).Node()
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
		n := incident.Working(t).Node()
		report := Examine(t.Context(), n, s, Own{})
		check.That(t, codes(report) == want && n.Touches() == 0, "%s root causes %q, want %q: %v %v", text, codes(report), want, report.Causes, report.Unread)
	}
}

// TestPartitionsOfBusyGPU: a GPU that waits with its change while it is in use has other partitions
// than node.toml asks for.
func TestPartitionsOfBusyGPU(t *testing.T) {
	s := specs.Of(t, "[mig]\nfailure = \"per-gpu\"\n[[mig.gpu]]\nlayout = {\"1g.10gb\" = 7}\n")
	w := incident.Working(t)
	n := w.Node()
	for _, address := range w.GPUs() {
		n.Use(address, -1, 4711)
	}
	r := Examine(t.Context(), n, s, Own{})
	must.That(t, codes(r) == "MIG-003" && len(r.Causes[0].Found) == len(w.GPUs()), "root causes %v", r.Causes)
	check.Says(t, r.Causes[0].Found[0].What, "is in use: process 4711", "node.toml asks for other partitions")
}

// TestImpossiblePartitions: a layout that gpuadm refuses is a fault of node.toml, which doctor names:
// nothing is unread. One of the reasons is a DRA driver that makes partitions itself.
func TestImpossiblePartitions(t *testing.T) {
	const dra = "812"
	for name, c := range map[string]struct {
		text  string
		files map[string]string
		says  string
	}{
		"too many": {"[[mig.gpu]]\nlayout = {\"1g.10gb\" = 8}\n", nil, "1g.10gb"},
		"DynamicMIG": {"[[mig.gpu]]\nlayout = {\"1g.10gb\" = 7}\n", map[string]string{
			"/proc/" + dra + "/comm":    "gpu-kubelet-plu\n",
			"/proc/" + dra + "/status":  "Name:\tgpu-kubelet-plu\nUid:\t0\t0\t0\t0\n",
			"/proc/" + dra + "/cgroup":  "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-0f.scope\n",
			"/proc/" + dra + "/environ": "FEATURE_GATES=DynamicMIG=true\x00",
		}, "NVIDIA's DRA driver makes and removes them"},
	} {
		s := must.Get(spec.Parse(spec.File{
			Name: "node.toml",
			Data: []byte("format = 1\n" + c.text),
		}))(t)
		n := incident.Working(t).Node()
		if c.files != nil {
			must.OK(t, n.Mkdir("/proc/"+dra, host.Attr{Mode: 0o555}))
		}
		for path, text := range c.files {
			must.OK(t, n.WriteFile(path, []byte(text), host.Attr{Mode: 0o444}))
		}
		report := Examine(t.Context(), n, s, Own{})
		isUnread := slices.ContainsFunc(report.Unread, func(u Unread) bool {
			return strings.Contains(u.What, "partitions")
		})
		must.That(t, codes(report) == "MIG-003" && !isUnread, "%s: root causes %v, unread %v", name, report.Causes, report.Unread)
		is := report.Causes[0]
		check.That(t, strings.Contains(is.Found[0].What, c.says) && strings.Contains(strings.Join(is.Commands, ""), "plan mig"), "%s: %+v", name, is)
	}
}

// TestNextKernel: a kernel that the next boot starts, and that has no module, is named before it
// boots.
func TestNextKernel(t *testing.T) {
	s := specs.Of(t, "[driver]\nversion = \"580\"\n")
	n := incident.Working(t).Node()
	must.OK(t, n.Mkdir("/lib/modules/99.1-generic", host.Attr{Mode: 0o755}))
	for name, text := range map[string]string{
		"/lib/modules/99.1-generic/modules.dep": "", "/var/lib/dpkg/info/libnvidia-compute-580.list": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05\n", // else the driver is another owner's
	} {
		must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
	}

	report := Examine(t.Context(), n, s, Own{})
	check.That(t, codes(report) == "" && len(report.Notes) == 1 && strings.HasPrefix(report.Notes[0].What, "the next boot starts kernel 99.1-generic, without the GPUs"), "%v %v", report.Causes, report.Notes)
}

// TestEngineWithoutKubelet: an engine that fails, or that refuses its configuration, is found
// before a kubelet is on the machine; one that is only stopped, or whose CRI plugin is off, may be
// meant so.
func TestEngineWithoutKubelet(t *testing.T) {
	disabled := `disabled_plugins = ["cri"]` + "\n"
	for name, c := range map[string]struct {
		machine  string
		active   string
		put      string // a file
		text     string
		rejected bool // by crio config
		want     string
	}{
		"well":                       {"rocky9-crio", "active", "", "", false, ""},
		"stopped":                    {"rocky9-crio", "inactive", "", "", false, ""},
		"failed":                     {"rocky9-crio", "failed", "", "", false, "RUN-005"},
		"ends again and again":       {"rocky9-crio", "activating\"\nsub = \"auto-restart", "", "", false, "RUN-010"},
		"crio config refuses":        {"rocky9-crio", "failed", "", "", true, "RUN-003"},
		"CRI-O, and no TOML":         {"rocky9-crio", "failed", "etc/crio/crio.conf.d/50-x.conf", "[crio\n", false, "RUN-003"},
		"containerd, and no TOML":    {"debian13-containerd17", "failed", "etc/containerd/config.toml", "[x\n", false, "RUN-003"},
		"containerd for other tools": {"debian13-containerd17", "active", "etc/containerd/config.toml", disabled, false, ""},
	} {
		a := must.Get(txtar.ParseFile("../../test/hosts/" + c.machine + ".txtar"))(t)
		a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool {
			return strings.Contains(f.Name, "kubelet") || f.Name == c.put
		})
		a.Files = append(a.Files, txtar.File{
			Name: cmp.Or(c.put, "etc/unused"),
			Data: []byte(c.text),
		})
		for i, f := range a.Files {
			if f.Name == "sim.toml" {
				before, rest, _ := strings.Cut(string(f.Data), "[[unit]]\nname = \"kubelet.service\"")
				if at := strings.Index(rest, "[["); at >= 0 {
					before += rest[at:]
				}
				text := strings.Replace(before, `active = "active"`, `active = "`+c.active+`"`, 1)
				a.Files[i].Data = []byte(text)
			}
		}

		n := must.Get(simhost.New(txtar.Format(a)))(t)
		if c.rejected {
			n.Install("crio", simhost.Program{Looks: func([]string) bool { return true }, Run: func(_ *files.Files, argv []string) ([]byte, error) {
				if slices.Contains(argv, "config") {
					return nil, &host.CommandError{
						Argv:   argv,
						Code:   1,
						Stderr: "validating runtime config: monitor_cgroup",
					}
				}
				return []byte("crio version 1.33.6\n"), nil
			}})
		}

		r := examine(t, n)
		check.That(t, codes(r) == c.want, "%s: %q, want %q: %v", name, codes(r), c.want, r.Causes)
	}
}

// TestEngineSays is of what an engine that runs answers, or does not, on a machine where no add-on
// for networks ever made /etc/cni/net.d.
func TestEngineSays(t *testing.T) {
	for name, c := range map[string]struct {
		says func(method string, _ []byte) ([]byte, error)
		want string
	}{
		"no network":        {func(string, []byte) ([]byte, error) { return incident.Status(1, 0), nil }, "KUB-013"},
		"ready":             {func(string, []byte) ([]byte, error) { return incident.Status(1, 1), nil }, ""},
		"not ready":         {func(string, []byte) ([]byte, error) { return incident.Status(0, 0), nil }, "RUN-013"},
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

// looked is a machine whose kubelet is another at each look.
type looked struct {
	host.View
	looks   atomic.Int32
	kubelet func(look int) host.Unit
}

func (l *looked) Unit(ctx context.Context, name string) (host.Unit, error) {
	u, err := l.View.Unit(ctx, name)
	if name == "kubelet.service" {
		now := l.kubelet(int(l.looks.Add(1)))
		u.Active, u.Sub, u.PID, u.Ended, u.Since, u.Uptime = now.Active, now.Sub, now.PID, now.Ended, now.Since, now.Uptime
	}
	return u, err
}

// TestEndsAgain: a kubelet that ends again and again is found while it runs, too.
func TestEndsAgain(t *testing.T) {
	runs := func(ended, uptime int) host.Unit {
		return host.Unit{
			Active: "active",
			Sub:    "running",
			PID:    7,
			Ended:  ended,
			Since:  time.Second,
			Uptime: time.Duration(uptime) * time.Second,
		}
	}

	for name, c := range map[string]struct {
		kubelet func(look int) host.Unit
		want    string
	}{
		"between two looks": {func(look int) host.Unit { return runs(look, 2) }, "KUB-014"},
		"while it is watched": {func(look int) host.Unit {
			if u := runs(3, 2); look < 6 {
				u.PID = look % 2 // it ends between two questions of one look
				return u
			}
			return host.Unit{Active: "activating", Sub: "auto-restart", Ended: 3, Uptime: time.Hour}
		}, "KUB-014"},
		"it has settled": {func(look int) host.Unit { return runs(3, 1+look) }, ""},
		"it never ended": {func(int) host.Unit { return runs(0, 2) }, ""},
	} {
		n, _ := joined(t, nil)
		r := examine(t, &looked{View: n, kubelet: c.kubelet})
		check.That(t, codes(r) == c.want, "%s: %q, want %q: %v", name, codes(r), c.want, r.Causes)
	}
}
