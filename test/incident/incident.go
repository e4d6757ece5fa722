// SPDX-License-Identifier: Apache-2.0

// Package incident has machines as public reports describe them: each file in reports is one, and
// its comment names the report.
package incident

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Incident is one report. Its section want has the codes of the root causes, unread what cannot be
// checked, do has a step a line, log the kernel's lines; all other sections are files of the
// machine.
type Incident struct {
	Name, Report, Want, Unread string

	of *txtar.Archive
}

// All are the incidents, by name.
func All(t testing.TB) map[string]Incident {
	t.Helper()
	files, err := filepath.Glob("../../test/incident/reports/*.txtar")
	must.That(t, err == nil && len(files) > 0, "%v: %v", "no incidents", err)
	all := map[string]Incident{}
	for _, file := range files {
		i := Incident{
			Name: strings.TrimSuffix(filepath.Base(file), ".txtar"),
			of:   must.Get(txtar.ParseFile(file))(t),
		}
		i.Report = string(i.of.Comment)
		for _, f := range i.of.Files {
			switch text := strings.TrimSpace(string(f.Data)); f.Name {
			case "want":
				i.Want = text
			case "unread":
				i.Unread = text
			}
		}

		all[i.Name] = i
	}

	return all
}

// Pair is two incidents on one machine, and the root causes then.
type Pair struct {
	Of   []Incident
	Want string
}

// Pairs are those of pairs.txt, by line.
func Pairs(t testing.TB) map[string]Pair {
	t.Helper()
	all, pairs := All(t), map[string]Pair{}
	for line := range strings.Lines(string(must.Get(os.ReadFile("../../test/incident/pairs.txt"))(t))) {
		names, want, is := strings.Cut(strings.TrimSpace(line), ": ")
		if one, other, two := strings.Cut(names, " + "); is && two {
			must.That(t, all[one].of != nil && all[other].of != nil, "no such incidents: %s", names)
			pairs[names] = Pair{[]Incident{all[one], all[other]}, want}
		}
	}

	return pairs
}

// World is a machine in a cluster, and what it talks to.
type World struct {
	*Machine
	Server  *kubesim.Server
	Rooms   map[string]host.Room
	cri     [2]byte // whether the engine's runtime and network are ready
	deaf    bool    // the engine does not answer
	offers  int     // GPUs that kubelet offers
	pods    map[string]string
	ahead   time.Duration // the machine's clock, of the server's
	now     time.Time
	answers []func(*simhost.Node)
}

// nodeName is what the cluster calls the machine, as clouds do another name than the machine's own.
const nodeName = "gpu-1.internal"

// Joined is the working machine in a cluster that has its Node, with the toolkit and a device
// plugin, if they are wanted.
func Joined(t *testing.T, plugin bool) *World {
	t.Helper()
	w := &World{
		Machine: Working(t),
		Server:  kubesim.New(kubesim.User{}),
		Rooms:   map[string]host.Room{},
		cri:     [2]byte{1, 1},
		offers:  8,
		pods:    map[string]string{},
	}
	w.Put("proc/sys/kernel/hostname", "gpu-1\n")
	w.user(`token: "planted-kubelet"`)
	w.Server.Token("planted-kubelet", kubesim.Node(nodeName))
	w.Server.AddNode(nodeName, map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": "gpu-1"})
	w.Offers(8, 8)
	w.Server.AddPod(Pod("kube-proxy-4x7qp"))
	if plugin {
		for _, f := range must.Get(txtar.ParseFile("../../test/incident/cluster.txtar"))(t).Files {
			w.Put(f.Name, string(f.Data))
		}
		w.Server.AddPod(Pod("nvidia-device-plugin-daemonset-csjxw"))
		w.answers = append(w.answers, w.daemons)
	}

	return w
}

// user has kubelet's kubeconfig name these credentials.
func (w *World) user(user string) {
	w.Put("etc/kubernetes/kubelet.conf mode=0600", `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://api.example:6443"}}], users: [{name: u, user: {`+user+`}}]}
`)
}

// Pod is one on the machine's Node.
func Pod(name string) kubesim.Object {
	return kubesim.Object{"metadata": kubesim.Object{"name": name, "namespace": "kube-system"}, "spec": kubesim.Object{"nodeName": nodeName}}
}

// Offers has the Node offer so many of so many GPUs.
func (w *World) Offers(gpus, capacity int) {
	w.status("allocatable", kubesim.Object{"cpu": "96", "nvidia.com/gpu": strconv.Itoa(gpus)})
	w.status("capacity", kubesim.Object{"nvidia.com/gpu": strconv.Itoa(capacity)})
}

func (w *World) status(key string, value any) {
	w.Server.EditNode(nodeName, func(n kubesim.Object) {
		status, _ := n["status"].(kubesim.Object)
		status[key] = value
	})
}

// Condition gives the Node one condition.
func (w *World) Condition(kind, status, message string) {
	w.status("conditions", []any{kubesim.Object{"type": kind, "status": status, "message": message}})
}

// Node boots the machine.
func (w *World) Node() *simhost.Node {
	w.t.Helper()
	n := w.Machine.Node()
	n.Serve("api.example:6443", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Date", w.now.Add(-w.ahead).Format(http.TimeFormat))
		w.Server.ServeHTTP(out, r)
	}))
	w.now = n.Now().UTC()
	for _, answer := range w.answers {
		answer(n)
	}
	return n
}

// daemons are the engine's, kubelet's and the device plugin's sockets.
func (w *World) daemons(n *simhost.Node) {
	n.Daemon("/run/containerd/containerd.sock", func(method string, _ []byte) ([]byte, error) {
		switch {
		case w.deaf:
			return nil, errors.New("no answer within 2s")
		case strings.HasSuffix(method, "/ListPodSandbox"):
			var list []byte
			for pod, handler := range w.pods {
				list = append(list, field(1, field(2, field(1, pod))+field(7, handler))...)
			}
			return list, nil
		}
		return Status(w.cri[0], w.cri[1]), nil
	})
	n.Daemon("/var/lib/kubelet/pod-resources/kubelet.sock", func(method string, _ []byte) (list []byte, _ error) {
		for i := range w.offers {
			if strings.HasSuffix(method, "/GetAllocatableResources") {
				list = append(list, field(1, field(1, "nvidia.com/gpu")+field(2, fmt.Sprintf("GPU-%d", i)))...)
			}
		}
		return list, nil
	})
	if _, err := n.Stat("/var/lib/kubelet/device-plugins/nvidia-gpu.sock"); err == nil {
		n.Daemon("/var/lib/kubelet/device-plugins/nvidia-gpu.sock", func(string, []byte) ([]byte, error) {
			return nil, nil
		})
	}
}

func field(n int, data string) string {
	return string(binary.AppendUvarint([]byte{byte(n<<3 | 2)}, uint64(len(data)))) + data
}

// Status is a StatusResponse of CRI (k8s.io/cri-api, pkg/apis/runtime/v1/api.proto), with what
// containerd says before it has found a network configuration:
// https://github.com/containerd/containerd/issues/8419; internal/cri/server/status.go there.
func Status(runtime, network byte) []byte {
	of := func(kind string, ready byte, reason, words string) string {
		text := field(1, kind) + "\x10" + string(ready)
		if ready == 0 {
			text += field(3, reason) + field(4, words)
		}
		return field(1, text)
	}
	return []byte(field(1, of("RuntimeReady", runtime, "NotReady", "broken")+of("NetworkReady", network, "NetworkPluginNotReady", "Network plugin returns error: cni plugin not initialized")))
}

// Do makes the machine as the incident has it.
func (w *World) Do(i Incident) {
	w.t.Helper()
	for _, f := range i.of.Files {
		switch f.Name {
		case "want", "unread":
		case "log":
			w.Says(strings.TrimSuffix(string(f.Data), "\n"))
		case "do":
			for line := range strings.Lines(string(f.Data)) {
				w.step(strings.TrimSuffix(line, "\n"))
			}
		default:
			w.Put(f.Name, string(f.Data))
		}
	}
}

// Steps makes these steps, each a line of an incident's section do.
func (w *World) Steps(lines ...string) {
	w.t.Helper()
	for _, line := range lines {
		w.step(line)
	}
}

// Named is an incident.
func (w *World) Named(name string) Incident {
	w.t.Helper()
	i, is := All(w.t)[name]
	must.That(w.t, is, "there is no incident %s", name)
	return i
}
