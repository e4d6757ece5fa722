// SPDX-License-Identifier: Apache-2.0

// Package incident has machines as public reports describe them: each file in reports is one, and
// its comment names the report.
package incident

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
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

// step is one line: a word, and what it is about.
func (w *World) step(line string) {
	w.t.Helper()
	words := append(strings.Fields(line), "", "", "")
	rest := strings.TrimSpace(strings.TrimPrefix(line, words[0]))
	behind := strings.TrimSpace(strings.TrimPrefix(rest, words[1]))
	number := func(word string) int { return must.Get(strconv.Atoi(word))(w.t) }
	switch words[0] {
	case "gpu":
		w.GPU(number(words[1]), behind)
	case "gpus":
		for nth := range w.GPUs() {
			w.GPU(nth, rest)
		}
	case "drop":
		w.Drop(number(words[1]))
	case "fails":
		w.Fails(words[1])
	case "cuda":
		w.answers = append(w.answers, func(n *simhost.Node) {
			n.CUDAAnswers(func([]string) host.CUDA {
				const library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
				return host.CUDA{
					Library: library,
					Code:    number(words[1]),
					Name:    words[2],
				}
			})
		})
	case "pod-waits":
		w.podWaits(words[1], "containerStatuses", words[2], words[3])
	case "init-waits":
		w.podWaits(words[1], "initContainerStatuses", words[2], words[3])
	case "label":
		w.Server.EditNode(nodeName, func(n kubesim.Object) {
			labels, _ := n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)
			labels[words[1]] = words[2]
		})
	case "unit-inactive":
		from := "name = \"" + words[1] + ".service\"\nenabled = \"enabled\"\nactive = "
		w.Change("sim.toml", from+`"active"`, from+`"inactive"`)
	case "no-switches":
		for _, address := range w.NVSwitches() {
			w.Remove("sys/bus/pci/devices/" + address)
		}
	case "masked":
		w.Masked(words[1])
	case "loops":
		w.Loops(words[1])
	case "unit":
		w.Settings(fmt.Sprintf("\n[[unit]]\nname = %q\nenabled = \"enabled\"\nactive = %q\n", words[1], words[2]))
	case "silent":
		w.Silent(words[1], behind)
	case "remove":
		w.Remove(words[1])
	case "package":
		w.Package(words[1], behind)
	case "change":
		from, to, _ := strings.Cut(behind, " => ")
		w.Change(words[1], strings.ReplaceAll(from, `\n`, "\n"), strings.ReplaceAll(to, `\n`, "\n"))
	case "bind":
		w.Bind(words[1], words[2])
	case "upgrade":
		w.Upgrade(words[1])
	case "module":
		w.Module(words[1], words[2])
	case "unloaded":
		w.Unloaded()
	case "newkernel":
		w.NewKernel()
	case "metal":
		w.Metal(cmp.Or(words[1], "16"))
	case "cri":
		w.cri, w.deaf = map[string][2]byte{"noruntime": {0, 0}, "nonetwork": {1, 0}}[words[1]], words[1] == "deaf"
	case "sandbox":
		w.pods[words[1]] = words[2]
	case "kubelet-offers":
		w.offers = number(words[1])
	case "node-offers":
		w.Offers(number(words[1]), number(words[2]))
	case "condition":
		w.Condition(words[1], words[2], strings.TrimSpace(strings.TrimPrefix(behind, words[2])))
	case "taint":
		w.Server.EditNode(nodeName, func(n kubesim.Object) {
			n["spec"] = kubesim.Object{"taints": []any{kubesim.Object{"key": words[1], "effect": words[2]}}}
		})
	case "kubelet-rejects":
		w.answers = append(w.answers, func(n *simhost.Node) { rejectsFlag(n, words[1]) })
	case "cordoned":
		w.Server.EditNode(nodeName, func(n kubesim.Object) {
			n["spec"] = kubesim.Object{"unschedulable": true}
		})
	case "node-deleted":
		w.Server.DeleteNode(nodeName)
	case "pod-deleted":
		w.Server.DeletePod("kube-system", words[1])
	case "api":
		w.Server.Fail(kubesim.Fault{Status: number(words[1]), Times: -1})
	case "clock":
		w.ahead = must.Get(time.ParseDuration(words[1]))(w.t)
	case "config-rejected":
		w.answers = append(w.answers, func(n *simhost.Node) {
			n.Install("containerd", simhost.Program{Looks: func([]string) bool { return true }, Run: func(_ *files.Files, argv []string) ([]byte, error) {
				return nil, &host.CommandError{
					Argv:   argv,
					Code:   1,
					Stderr: rest,
				}
			}})
		})
	case "ctime":
		w.Find(words[1]).Name += " ctime=" + words[2]
	case "room":
		w.Rooms[words[1]] = host.Room{
			Bytes: uint64(number(words[2])),
			Files: uint64(number(words[3])),
		}
	case "certificate":
		w.certificate(words[1], must.Get(time.ParseDuration(words[2]))(w.t), must.Get(time.ParseDuration(words[3]))(w.t))
	default:
		w.t.Fatalf("no step %q", line)
	}
}

// rejectsFlag has kubelet end for a flag that it does not know, as
// https://github.com/awslabs/amazon-eks-ami/issues/1398 and https://github.com/voxpupuli/puppet-k8s/issues/64
// have its words.
func rejectsFlag(n *simhost.Node, flag string) {
	n.Install("kubelet", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(_ *files.Files, argv []string) ([]byte, error) {
			for _, word := range argv {
				name, _, _ := strings.Cut(word, "=")
				if name == flag {
					const said = `E0707 08:17:04.199967    5604 run.go:74] "command failed" err="failed to parse kubelet flag: unknown flag: `
					return nil, &host.CommandError{
						Argv:   argv,
						Code:   1,
						Stderr: said + flag + `"`,
					}
				}
			}
			return []byte("Kubernetes v1.31.4\n"), nil
		},
	})
}

// podWaits adds a pod with a container that waits for this reason.
func (w *World) podWaits(name, list, reason, container string) {
	pod := Pod(name)
	pod["status"] = kubesim.Object{list: []any{kubesim.Object{
		"name": cmp.Or(container, "ctr"), "restartCount": 12, "state": kubesim.Object{"waiting": kubesim.Object{"reason": reason}},
	}}}
	w.Server.AddPod(pod)
}

// certificate has kubelet's credentials be a certificate of a user, valid from and until so long
// after the machine's clock.
func (w *World) certificate(of string, from, until time.Duration) {
	now := w.Machine.Node().Now()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(w.t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: of, Organization: []string{"system:nodes"}},
		NotBefore:    now.Add(from),
		NotAfter:     now.Add(until),
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key))(w.t)
	secret := must.Get(x509.MarshalPKCS8PrivateKey(key))(w.t)
	text := func(kind string, data []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{
			Type:  kind,
			Bytes: data,
		}))
	}

	w.user("token: \"planted-kubelet\", client-certificate-data: " + text("CERTIFICATE", der) + ", client-key-data: " + text("PRIVATE KEY", secret))
}
