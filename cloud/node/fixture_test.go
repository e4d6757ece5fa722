// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// apiNode is a joined machine with two GPUs, its cluster, and what is asked of it.
type apiNode struct {
	*simhost.Node
	t      *testing.T
	sim    *kubesim.Server
	spec   string
	stages []converge.Stage
	shared *Session
	facts  facts.Facts // what Gather does not say of a simulated machine
	ctx    context.Context
}

const (
	apiKubelet = "/etc/kubernetes/kubelet.conf"
	apiAccount = "/etc/gpuadm/account.conf"
	apiSecret  = "planted-s3cret-token"
)

// apiSpec asks for a label that kubelet may set, one that it may not, a taint, and a startup taint.
const apiSpec = `
[node]
labels = { "example.com/rack" = "r7", "node-role.kubernetes.io/gpu" = "" }
taints = ["nvidia.com/gpu=present:NoSchedule"]
startup_taint = "example.com/starting:NoSchedule"
kubeconfig = "` + apiAccount + `"
gpu_labels = false
`

func apiConfig(token string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://api.example:6443"}}], users: [{name: u, user: {token: "%s-%s"}}]}
`, apiSecret, token)
}

// apiFixture makes one; machine are more sections of its archive.
func apiFixture(t *testing.T, text string, machine ...string) *apiNode {
	t.Helper()
	n, err := simhost.New([]byte(strings.Join(machine, "") + "-- " + apiKubelet[1:] + " --\n" + apiConfig("kubelet") + "-- " + apiAccount[1:] + " --\n" + apiConfig("account")))
	must.OK(t, err)
	sim := kubesim.New(kubesim.User{})
	sim.Token(apiSecret+"-kubelet", kubesim.Node("gpu-1"))
	sim.Token(apiSecret+"-account", kubesim.User{
		Name: "system:serviceaccount:gpuadm:gpuadm",
		May:  []string{"get nodes", "patch nodes"},
	})
	sim.AddNode("gpu-1", map[string]string{"kubernetes.io/os": "linux", "theirs.example/x": "1"},
		kubesim.Object{"key": "theirs.example/busy", "value": "y", "effect": "NoSchedule"},
		kubesim.Object{"key": "example.com/starting", "effect": "NoSchedule"},
		kubesim.Object{"key": "theirs.example/late", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"})
	n.Serve("api.example:6443", sim)
	n.CUDAAnswers(cudaWorks) // the GPUs are in the facts alone
	gpus := []facts.PCI{{
		Address: "0000:17:00.0",
		Vendor:  "10de",
		Class:   "030200",
		Model:   "H100 80GB",
	}, {Address: "0000:18:00.0", Vendor: "10de", Class: "030200", Model: "H100 80GB"}}
	driver := &host.Driver{
		Version: "580.95.05",
		NVML:    "580.95.05",
		GPUs: []host.GPU{{
			Address: gpus[0].Address,
			Name:    "NVIDIA H100",
		}, {Address: gpus[1].Address, Name: "NVIDIA H100"}},
	}
	a := &apiNode{
		Node: n,
		t:    t,
		sim:  sim,
		spec: text,
		ctx:  t.Context(),
	}
	a.facts = facts.Facts{
		GPUs:   gpus,
		Driver: driver,
		Kubelet: facts.Kubelet{
			Kubeconfig: apiKubelet,
			NodeName:   "gpu-1",
			Joined:     true,
		},
	}
	se := new(Session)
	a.shared = se
	a.stages = []converge.Stage{a.with(NewGuard(se)), a.with(NewReady(se, nil, oldEngine))}
	return a
}

// oldEngine is runtime.LacksCDI of a machine with an old engine.
func oldEngine(f facts.Facts) string {
	if len(f.Engines) > 0 && f.Engines[0].Version == "1.6.33" {
		return "containerd 1.6.33 has no CDI"
	}
	return ""
}

// with gives a stage the machine's facts.
func (a *apiNode) with(st converge.Stage) converge.Stage {
	wants := st.Wants
	st.Wants = func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
		g := a.facts
		g.Live, g.BootID, g.Files = f.Live, a.BootID(), f.Files
		return wants(s, g)
	}

	return st
}

func (a *apiNode) engine() *converge.Engine {
	a.t.Helper()
	s := must.Get(spec.Parse(spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n" + a.spec),
	}))(a.t)
	return &converge.Engine{Stages: a.stages, Spec: s, Version: "test", ThingOf: func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "guard" {
			thing, err := NewGuardThing(ref.Name, a.shared)
			if g, ok := thing.(guard); ok {
				g.part.identity = a.accountIdentity()
				return g, err
			}
			return thing, err
		}

		thing, err := NewPart(ref.Name, a.shared)
		if p, ok := thing.(nodePart); ok { // Gather knows of no kubelet here
			p.identity = a.accountIdentity()
			return p, err
		}
		return thing, err
	}}
}

// accountIdentity is who the machine is for things of the journal.
func (a *apiNode) accountIdentity() *identity {
	f := a.facts
	f.Live = true
	id := identityOf(spec.Spec{Node: spec.Node{Kubeconfig: apiAccount}}, f)
	return &id
}

func (a *apiNode) apply() converge.Result {
	a.t.Helper()
	res, err := a.engine().Apply(a.ctx, a)
	must.That(a.t, err == nil, "apply: %v", err)
	return res
}

// shown is the cluster's Node in words: labels, taints and our condition.
func (a *apiNode) shown() string {
	n := a.sim.Node("gpu-1")
	if n == nil {
		return "no node"
	}
	var b strings.Builder
	labels, _ := n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, "%s=%v\n", k, labels[k])
	}
	taints, _ := n["spec"].(kubesim.Object)["taints"].([]any)
	var lines []string
	for _, t := range taints {
		o := t.(kubesim.Object)
		lines = append(lines, fmt.Sprintf("taint %v=%v:%v %v", o["key"], o["value"], o["effect"], o["timeAdded"]))
	}

	slices.Sort(lines)
	b.WriteString(strings.Join(lines, "\n") + "\n" + a.condition())
	return b.String()
}

func (a *apiNode) label(key string) any {
	labels, _ := a.sim.Node("gpu-1")["metadata"].(kubesim.Object)["labels"].(kubesim.Object)
	return labels[key]
}

func (a *apiNode) tainted(key string) bool {
	taints, _ := a.sim.Node("gpu-1")["spec"].(kubesim.Object)["taints"].([]any)
	return slices.ContainsFunc(taints, func(t any) bool {
		return t.(kubesim.Object)["key"] == key
	})
}

func (a *apiNode) ready() bool { return strings.HasPrefix(a.condition(), kube.True) }

func (a *apiNode) undone() bool {
	return strings.HasPrefix(a.condition(), kube.Unknown+" "+undoneReason)
}

func (a *apiNode) condition() string {
	conditions, _ := a.sim.Node("gpu-1")["status"].(kubesim.Object)["conditions"].([]any)
	for _, c := range conditions {
		if o := c.(kubesim.Object); o["type"] == GPUReady {
			return fmt.Sprintf("%v %v %v", o["status"], o["reason"], o["message"])
		}
	}

	return ""
}

const apiConverged = `example.com/rack=r7
kubernetes.io/os=linux
node-role.kubernetes.io/gpu=
theirs.example/x=1
taint nvidia.com/gpu=present:NoSchedule <nil>
taint theirs.example/busy=y:NoSchedule <nil>
taint theirs.example/late=<nil>:NoExecute 2026-01-02T03:04:05Z
True GPUsReady 2 × H100 80GB, driver 580.95.05, boot `

func (a *apiNode) converged(boot string) {
	a.t.Helper()
	got, want := a.shown(), apiConverged+boot
	check.That(a.t, got == want, "the Node is\n%s\nwant\n%s", got, want)
}

func (a *apiNode) mark() string { id := a.BootID(); return id[len(id)-8:] }
