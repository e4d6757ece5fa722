// SPDX-License-Identifier: Apache-2.0

package incident

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A step is one line of a section do: a verb, and what it is about.
type step struct {
	t    testing.TB
	verb string

	first, second, third string // the words behind the verb, "" where the line has ended
	all                  string // all that is behind the verb
	rest                 string // all that is behind the first word
}

func stepOf(t testing.TB, line string) step {
	words := append(strings.Fields(line), "", "", "", "")
	all := strings.TrimSpace(strings.TrimPrefix(line, words[0]))
	return step{
		t:      t,
		verb:   words[0],
		first:  words[1],
		second: words[2],
		third:  words[3],
		all:    all,
		rest:   strings.TrimSpace(strings.TrimPrefix(all, words[1])),
	}
}

func (s step) number(word string) int {
	s.t.Helper()
	return must.Get(strconv.Atoi(word))(s.t)
}

func (s step) duration(word string) time.Duration {
	s.t.Helper()
	return must.Get(time.ParseDuration(word))(s.t)
}

// step makes one step.
func (w *World) step(line string) {
	w.t.Helper()
	s := stepOf(w.t, line)
	known := w.changeGPUs(s) || w.changeMachine(s) || w.changeDaemons(s) || w.changeCluster(s)
	must.That(w.t, known, "no step %q", line)
}

// changeGPUs makes the steps about GPUs, their driver and its answers; known is false for another step.
func (w *World) changeGPUs(s step) (known bool) {
	w.t.Helper()
	switch s.verb {
	case "gpu":
		w.GPU(s.number(s.first), s.rest)
	case "gpus":
		for nth := range w.GPUs() {
			w.GPU(nth, s.all)
		}
	case "drop":
		w.Drop(s.number(s.first))
	case "bind":
		w.Bind(s.first, s.second)
	case "no-switches":
		for _, address := range w.NVSwitches() {
			w.Remove("sys/bus/pci/devices/" + address)
		}
	case "metal":
		w.Metal(cmp.Or(s.first, "16"))
	case "module":
		w.Module(s.first, s.second)
	case "unloaded":
		w.Unloaded()
	case "upgrade":
		w.Upgrade(s.first)
	case "silent":
		w.Silent(s.first, s.rest)
	case "cuda":
		w.cudaAnswers(s.number(s.first), s.second)
	default:
		return false
	}
	return true
}

// changeMachine makes the steps about files, packages, the kernel, the clock and disks.
func (w *World) changeMachine(s step) (known bool) {
	w.t.Helper()
	unescaped := func(text string) string { return strings.ReplaceAll(text, `\n`, "\n") }
	switch s.verb {
	case "remove":
		w.Remove(s.first)
	case "change":
		from, to, _ := strings.Cut(s.rest, " => ")
		w.Change(s.first, unescaped(from), unescaped(to))
	case "ctime":
		w.Find(s.first).Name += " ctime=" + s.second
	case "package":
		w.Package(s.first, s.rest)
	case "newkernel":
		w.NewKernel()
	case "clock":
		w.ahead = s.duration(s.first)
	case "room":
		w.Rooms[s.first] = host.Room{
			Bytes: uint64(s.number(s.second)),
			Files: uint64(s.number(s.third)),
		}
	default:
		return false
	}
	return true
}

// changeDaemons makes the steps about units, the engine and kubelet.
func (w *World) changeDaemons(s step) (known bool) {
	w.t.Helper()
	switch s.verb {
	case "unit":
		w.Settings(fmt.Sprintf("\n[[unit]]\nname = %q\nenabled = \"enabled\"\nactive = %q\n", s.first, s.second))
	case "unit-inactive":
		from := "name = \"" + s.first + ".service\"\nenabled = \"enabled\"\nactive = "
		w.Change("sim.toml", from+`"active"`, from+`"inactive"`)
	case "fails":
		w.Fails(s.first)
	case "loops":
		w.Loops(s.first)
	case "masked":
		w.Masked(s.first)
	case "config-rejected":
		w.answers = append(w.answers, func(n *simhost.Node) { rejectsConfig(n, s.all) })
	case "cri":
		w.engineIs(s.first)
	case "sandbox":
		w.pods[s.first] = s.second
	case "kubelet-offers":
		w.offers = s.number(s.first)
	case "kubelet-rejects":
		w.answers = append(w.answers, func(n *simhost.Node) { rejectsFlag(n, s.first) })
	case "certificate":
		w.certificate(s.first, s.duration(s.second), s.duration(s.third))
	default:
		return false
	}
	return true
}

// changeCluster makes the steps about the API server, the Node and its pods.
func (w *World) changeCluster(s step) (known bool) {
	w.t.Helper()
	switch s.verb {
	case "api":
		w.Server.Fail(kubesim.Fault{Status: s.number(s.first), Times: -1})
	case "node-deleted":
		w.Server.DeleteNode(nodeName)
	case "node-offers":
		w.Offers(s.number(s.first), s.number(s.second))
	case "condition":
		message := strings.TrimSpace(strings.TrimPrefix(s.rest, s.second))
		w.Condition(s.first, s.second, message)
	case "label":
		w.Server.EditNode(nodeName, func(n kubesim.Object) {
			labels, _ := n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)
			labels[s.first] = s.second
		})
	case "taint":
		taint := kubesim.Object{"key": s.first, "effect": s.second}
		w.Server.EditNode(nodeName, func(n kubesim.Object) {
			n["spec"] = kubesim.Object{"taints": []any{taint}}
		})
	case "cordoned":
		w.Server.EditNode(nodeName, func(n kubesim.Object) {
			n["spec"] = kubesim.Object{"unschedulable": true}
		})
	case "pod-deleted":
		w.Server.DeletePod("kube-system", s.first)
	case "pod-waits":
		w.podWaits(s.first, "containerStatuses", s.second, s.third)
	case "init-waits":
		w.podWaits(s.first, "initContainerStatuses", s.second, s.third)
	default:
		return false
	}
	return true
}

// cudaAnswers has CUDA start with this result.
func (w *World) cudaAnswers(code int, name string) {
	result := host.CUDA{
		Library: "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
		Code:    code,
		Name:    name,
	}
	w.answers = append(w.answers, func(n *simhost.Node) {
		n.CUDAAnswers(func([]string) host.CUDA { return result })
	})
}

// engineIs has the engine not answer (deaf), or say by CRI what is not ready: its runtime (noruntime), or
// the network alone (nonetwork).
func (w *World) engineIs(how string) {
	w.deaf = how == "deaf"
	w.cri = [2]byte{0, 0}
	if how == "nonetwork" {
		w.cri = [2]byte{1, 0}
	}
}

// rejectsConfig has containerd refuse its configuration with these words.
func rejectsConfig(n *simhost.Node, words string) {
	n.Install("containerd", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(_ *files.Files, argv []string) ([]byte, error) {
			return nil, &host.CommandError{Argv: argv, Code: 1, Stderr: words}
		},
	})
}

// rejectsFlag has kubelet end for a flag that it does not know, as
// https://github.com/awslabs/amazon-eks-ami/issues/1398 and https://github.com/voxpupuli/puppet-k8s/issues/64
// have its words.
func rejectsFlag(n *simhost.Node, flag string) {
	n.Install("kubelet", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(_ *files.Files, argv []string) ([]byte, error) {
			isFlag := func(word string) bool {
				name, _, _ := strings.Cut(word, "=")
				return name == flag
			}
			if !slices.ContainsFunc(argv, isFlag) {
				return []byte("Kubernetes v1.31.4\n"), nil
			}

			const said = `E0707 08:17:04.199967    5604 run.go:74] "command failed" err="failed to parse kubelet flag: unknown flag: `
			return nil, &host.CommandError{Argv: argv, Code: 1, Stderr: said + flag + `"`}
		},
	})
}

// podWaits adds a pod with a container that waits for this reason.
func (w *World) podWaits(name, list, reason, container string) {
	pod := Pod(name)
	waiting := kubesim.Object{
		"name":         cmp.Or(container, "ctr"),
		"restartCount": 12,
		"state":        kubesim.Object{"waiting": kubesim.Object{"reason": reason}},
	}
	pod["status"] = kubesim.Object{list: []any{waiting}}
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
