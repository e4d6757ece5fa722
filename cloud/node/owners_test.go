// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host/local"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/specs"
)

func TestOwnerOf(t *testing.T) {
	for key, want := range map[string]string{
		"eks.amazonaws.com/capacityType":                          "EKS",
		"eks.amazonaws.com/nodegroup":                             "EKS",
		"karpenter.sh/capacity-type":                              "Karpenter",
		"karpenter.sh/unregistered":                               "Karpenter",
		"karpenter.k8s.aws/instance-gpu-count":                    "Karpenter",
		"cloud.google.com/gke-spot":                               "GKE",
		"cloud.google.com/gke-provisioning":                       "GKE",
		"cloud.google.com/gke-accelerator":                        "GKE",
		"cloud.google.com.node-restriction.kubernetes.io/x":       "GKE",
		"kubernetes.azure.com/scalesetpriority":                   "AKS",
		"kubernetes.azure.com/accelerator":                        "",
		"node.kubernetes.io/not-ready":                            "Kubernetes",
		"node.kubernetes.io/instance-type":                        "Kubernetes",
		"node.kubernetes.io/exclude-from-external-load-balancers": "",
		"node.cloudprovider.kubernetes.io/uninitialized":          "the cloud controller manager",
		"kubernetes.io/hostname":                                  "kubelet",
		"ToBeDeletedByClusterAutoscaler":                          "cluster-autoscaler",
		"nvidia.com/gfd.timestamp":                                "GPU Feature Discovery",
		"nvidia.com/gpu":                                          "",
		"nvidia.com/gpu.product":                                  "",
		"node-role.kubernetes.io/gpu":                             "",
		"topology.kubernetes.io/zone":                             "",
		"feature.node.kubernetes.io/pci-10de.present":             "",
		"accelerator":                                             "",
		"karpenter.sh":                                            "",
		"xkarpenter.sh/nodepool":                                  "",
		"kubernetes.io/hostnames":                                 "",
		"readiness.k8s.io/gpu":                                    "",
		"":                                                        "",
	} {
		got := ownerOf(key)
		check.That(t, got == want, "%q is %q's, want %q", key, got, want)
	}
}

// TestOursAreNotForeign holds what we set ourselves against the list of others'.
func TestOursAreNotForeign(t *testing.T) {
	keys := []string{gpuPresent, readinessTaint().Key, autoscalerTaint().Key}
	for _, f := range []facts.Facts{{Cloud: instance.Cloud{Name: "aws"}}, {}} {
		f.GPUs = []facts.PCI{{Class: "030200"}}
		for key := range autoscalerLabels(f) {
			keys = append(keys, key)
		}
	}

	check.That(t, len(keys) == 4, "keys %v", keys)
	for _, key := range keys {
		owner := ownerOf(key)
		check.That(t, owner == "", "%s is %s's", key, owner)
	}
}

func TestRefuseForeign(t *testing.T) {
	check.OK(t, refuseForeign(spec.Spec{Node: spec.Node{
		Labels: map[string]string{"example.com/a": "b"},
		Taints: []spec.Taint{{
			Key:    "nvidia.com/gpu",
			Value:  "present",
			Effect: "NoSchedule",
		}},
	}}))
	for name, n := range map[string]spec.Node{
		"GKE's label": {Labels: map[string]string{"cloud.google.com/gke-spot": "true"}},
		"AKS's taint": {Taints: []spec.Taint{{Key: "kubernetes.azure.com/scalesetpriority", Value: "spot", Effect: "NoSchedule"}}},
	} {
		faulted(t, name, refuseForeign(spec.Spec{Node: n}), foreignKey)
	}
}

// TestForeigns: all keys with another owner are named, each with its place in the spec, and the first
// TestOwnTaintsAreNotLasting: the taints by which gpuadm keeps pods off until the GPUs are ready are
// none for [node] taints: gpuadm would take a lasting one off, also where startup_taint is left out.
func TestOwnTaintsAreNotLasting(t *testing.T) {
	own := []spec.Taint{autoscalerTaint(), readinessTaint(), failureTaint()}
	for _, lasting := range own {
		for startup, refused := range map[string]bool{
			"":                           true,
			"startup_taint = \"auto\"\n": true,
			"startup_taint = \"none\"\n": false,
			"startup_taint = \"a.example/x:NoSchedule\"\n": false,
		} {
			lasting.Value = "other" // a Node has one taint of a key and an effect
			text := "format = 1\n[node]\nkubeconfig = \"/etc/gpuadm/account.conf\"\ntaints = [\"" + lasting.String() + "\"]\n" + startup
			s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)}))(t)
			all := Foreigns(s)
			check.Equal(t, len(all) == 1, refused, "%s, %q: %v is refused: ", lasting, startup, all)
			if refused && len(all) == 1 {
				faulted(t, "lasting taint "+lasting.Key, all[0].Trouble(), taintTwice)
			}
		}
	}
}

// refusal has them all.
func TestForeigns(t *testing.T) {
	s := spec.Spec{Node: spec.Node{
		GPULabels: true,
		Labels: map[string]string{
			"karpenter.sh/nodepool": "a", "kubernetes.io/hostname": "b",
			"example.com/team": "c", "nvidia.com/mig.config": "d",
			"nvidia.com/gpu.product": "e", "nvidia.com/gfd.timestamp": "f",
			"nvidia.com/mig-1g.10gb.count": "g", "nvidia.com/gpu.clique": "h",
		},
		Taints:       []spec.Taint{{Key: "node.kubernetes.io/not-ready", Effect: "NoExecute"}},
		StartupTaint: "karpenter.sh/unregistered:NoExecute",
	}}
	var got []string
	for _, f := range Foreigns(s) {
		got = append(got, f.Key+" "+f.Who)
	}
	want := []string{
		"node.labels.karpenter.sh/nodepool Karpenter", "node.labels.kubernetes.io/hostname kubelet",
		"node.labels.nvidia.com/gfd.timestamp GPU Feature Discovery",
		"node.labels.nvidia.com/gpu.clique GPU Feature Discovery",
		"node.labels.nvidia.com/gpu.product GPU Feature Discovery",
		"node.labels.nvidia.com/mig-1g.10gb.count GPU Feature Discovery",
		"node.taints Kubernetes", "node.startup_taint Karpenter",
	}
	check.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "labels and taints of others")
	var refused *trouble.Error
	must.That(t, errors.As(refuseForeign(s), &refused), "not refused")
	check.That(t, len(refused.Try) == len(want) && len(refused.Because) == len(want)-1, "%+v", refused)

	s.Node.GPULabels = false // an operator may set what nobody else does here
	check.Equal(t, len(Foreigns(s)), len(want)-3, "labels and taints of others, without gpu_labels")
}

// others adds a condition of another client, written so long ago.
func (a *apiNode) others(kind, status, reason string, age time.Duration) {
	a.sim.EditNode("gpu-1", func(n kubesim.Object) {
		at := a.Now().Add(-age).UTC().Format(time.RFC3339)
		n["status"].(kubesim.Object)["conditions"] = []any{
			kubesim.Object{"type": "Ready", "status": "True"},
			kubesim.Object{"type": kind, "status": status, "reason": reason, "message": "theirs", "lastHeartbeatTime": at, "lastTransitionTime": at},
		}
	})
}

// TestSecondOwner: a condition that Node Problem Detector writes is refused and stays; nothing
// about it is reported, and the guard of the next boot leaves it. What it has left behind is taken
// over. The reason is that of NVIDIA/gpu-operator, examples/cluster-autoscaler.
func TestSecondOwner(t *testing.T) {
	const theirs = "GPUReadinessPending"
	for _, status := range []string{"False", "True"} {
		a := apiFixture(t, apiSpec)
		a.others(GPUReady, status, theirs, 20*time.Second)
		_, err := a.engine().Apply(a.ctx, a)
		faulted(t, "a second owner", err, secondOwner)
		check.OK(t, a.report(Outcome{Stage: "ready", Err: err}))
		a.Reboot()
		a.others(GPUReady, status, theirs, 20*time.Second)
		_, _ = a.engine().Apply(a.ctx, a)
		check.That(t, a.condition() == status+" "+theirs+" theirs" && !a.tainted(failureTaint().Key) && a.tainted("example.com/starting"), "the Node is\n%s", a.shown())
		a.others(GPUReady, status, theirs, 11*time.Minute)
		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}

// TestSecondOwnerWithJoin: with [join] gpuadm writes the condition also without [node], so the advice
// is not to remove that section.
func TestSecondOwnerWithJoin(t *testing.T) {
	for sections, removes := range map[string]bool{
		"[node]\n":                            true,
		"[node]\n[join]\nmethod = \"none\"\n": true,
		"[node]\n[join]\nmethod = \"aks\"\n":  false,
	} {
		a := apiFixture(t, sections)
		r := newReadyStage(new(Session), specs.Of(t, sections), a.facts)
		n := &kube.Node{}
		n.Status.Conditions = []kube.Condition{{
			Type:              GPUReady,
			Reason:            "GPUReadinessPending",
			LastHeartbeatTime: a.Now(),
		}}
		_, try := detailsOf(r.gpusReady(t.Context(), a, n))
		check.Equal(t, strings.Contains(strings.Join(try, "\n"), "remove [node]"), removes, "%s: %q:", sections, try)
	}
}

// TestRepairWaits: a node that another component has found at fault gets no pods, and the wait
// names who acts. The condition is left alone.
func TestRepairWaits(t *testing.T) {
	for _, tt := range []struct{ kind, bad, good, reason string }{
		{"AcceleratedHardwareReady", "False", "True", "NvidiaXID79Error"},
		{"GpuMemWatch", "True", "False", "GpuMemWatchIsNotHealthy"},
		{"SysLogsXIDError", "True", "False", "SysLogsXIDErrorIsNotHealthy"},
	} {
		a := apiFixture(t, apiSpec)
		a.others(tt.kind, tt.bad, tt.reason, time.Hour)
		a.faulted(tt.kind, underRepair)
		check.None(t, a.condition(), "%s: the condition is", tt.kind)
		c := a.sim.Node("gpu-1")["status"].(kubesim.Object)["conditions"].([]any)[1].(kubesim.Object)
		check.That(t, c["status"] == tt.bad && c["message"] == "theirs", "%s was changed: %v", tt.kind, c)
		a.others(tt.kind, tt.good, "", time.Hour)
		a.Advance(time.Minute)
		a.apply()
		a.converged(a.mark())
	}
}

// layoutEnv hands a layout to a process of our own that has the fake driver in its library path.
const layoutEnv = "GPUADM_TEST_LAYOUT"

// askGFD writes what NVIDIA's program says on a fake machine into a golden file.
func askGFD(t *testing.T, c labelCase, program, golden string) {
	t.Helper()
	fake := fakenvml.New(t, c.gpus)
	run := func(argv []string, env ...string) string {
		t.Helper()
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(append(os.Environ(), fake.Env()...), env...)
		out, err := cmd.CombinedOutput()
		must.That(t, err == nil, "%v: %v\n%s", argv, err, out)
		return string(out)
	}

	layout, _ := json.Marshal(c.layout)
	for range 2 {
		said := run([]string{os.Args[0], "-test.run=^TestPartitionFake$", "-test.v"}, layoutEnv+"="+string(layout))
		for line := range strings.Lines(said) {
			if _, gpus, ok := strings.Cut(strings.TrimSpace(line), "to be reset: "); ok {
				fake.SMI("--gpu-reset", "-i", gpus)
			}
		}
	}

	dir := t.TempDir()
	config := fmt.Sprintf("version: v1\nflags:\n  migStrategy: %s\n", c.strategy)
	for how, replicas := range map[string]int{"timeSlicing": c.replicas, "mps": c.mps} {
		if replicas > 0 {
			config += fmt.Sprintf("sharing:\n  %s:\n    resources:\n", how)
			for _, name := range c.resources() {
				config += fmt.Sprintf("    - name: %s\n      replicas: %d\n", name, replicas)
			}
		}
	}

	for name, text := range map[string]string{"config": config, "machine": c.machine + "\n"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	run([]string{
		program, "--oneshot", "--no-timestamp", "--use-node-feature-api=false", "--device-discovery-strategy=nvml",
		"--config-file", filepath.Join(dir, "config"), "--machine-type-file", filepath.Join(dir, "machine"), "--output-file", filepath.Join(dir, "out"),
	})
	out := must.Get(os.ReadFile(filepath.Join(dir, "out")))(t)
	sorted := slices.Sorted(strings.Lines(string(out)))
	must.OK(t, os.MkdirAll(filepath.Dir(golden), 0o755))
	must.OK(t, os.WriteFile(golden, []byte(strings.Join(sorted, "")), 0o644))
}

// TestPartitionFake is what askGFD runs in a process of its own. In any other it has nothing to do.
func TestPartitionFake(t *testing.T) {
	text := os.Getenv(layoutEnv)
	if text == "" {
		return
	}
	var layout map[int][]string
	must.OK(t, json.Unmarshal([]byte(text), &layout))
	h := must.Get(local.Open("/"))(t)
	d := must.Get(h.Driver(t.Context()))(t)
	if slices.ContainsFunc(d.GPUs, func(g host.GPU) bool { return len(g.Instances) > 0 }) {
		return // the run before did it
	}
	if wait := partition(t, h, layout); len(wait) > 0 {
		fmt.Println("to be reset: " + strings.Join(wait, ","))
	}
}

// With [sharing] the number that a device plugin offers is compared with it, also where none is
// waited for: one that was configured otherwise offers another. A node without a device plugin is
// ready.
func TestSharingCompared(t *testing.T) {
	for _, x := range []struct {
		sharing, offers string
		waits           bool
	}{
		{"time_slicing = 4\n", "8", false},
		{"mps = 4\n", "8", false},
		{"time_slicing = 4\n", "2", true},
		{"mps = 4\n", "2", true},
		{"", "8", true},
		{"time_slicing = 4\n", "", false},
		{"time_slicing = 4\n", "0", false},
	} {
		a := apiFixture(t, apiSpec+"[sharing]\n"+x.sharing)
		name := "nvidia.com/gpu"
		if x.offers == "" {
			name = ""
		}
		offers(a, a.BootID(), name, x.offers)
		a.Advance(time.Minute)
		if x.waits {
			a.faulted(x.sharing+"offers "+x.offers, offersOther)
			continue
		}
		a.apply()
	}

	a := apiFixture(t, apiSpec)
	offers(a, a.BootID(), "nvidia.com/gpu", "8")
	a.Advance(time.Minute)
	_, err := a.engine().Apply(a.ctx, a)
	check.That(t, err == nil, "without [sharing]: %v", err)
}

func FuzzSandboxes(f *testing.F) {
	f.Add([]byte{0x0a, 0x02, 0x12, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		var pods []string
		var err error
		alloc.Most(t, 200, len(data), func() { pods, err = sandboxes(data) })
		for _, p := range pods {
			if err == nil && strings.ContainsAny(p, "\n\r") {
				t.Errorf("%q", p)
			}
		}
	})
}
