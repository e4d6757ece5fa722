// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// busyNode is a joined machine with partitions that pods have, and a label that asks for others.
type busyNode struct {
	*labelled
	pods    []string // that have a partition, NAMESPACE/NAME
	refuses string   // the budget that keeps the pods here; "" for none
	evicted []string
}

const kubeletSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// newBusy has two partitions, and kubelet's answer of podresources/v1 for the pods that have one:
// each with a name (1), a namespace (2) and a container (3) with a device (2).
func newBusy(t *testing.T, disruption string, pods ...string) *busyNode {
	t.Helper()
	b := &busyNode{
		labelled: newLabelled(t, kubesim.Object{"nvidia.com/mig.config": "two"}),
		pods:     pods,
	}
	b.gpuadm("apply", "mig")
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/kubelet/pod-resources"} {
		must.OK(t, b.Mkdir(dir, host.Attr{Mode: 0o755}))
	}
	b.write(kubeletSocket, "")
	d := must.Get(b.Driver(t.Context()))(t)
	field := func(n protowire.Number, text string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), text))
	}
	b.Daemon(kubeletSocket, func(string, []byte) ([]byte, error) {
		var answer strings.Builder
		for i, pod := range b.pods {
			namespace, name, _ := strings.Cut(pod, "/")
			id := d.GPUs[0].Instances[i].Compute[0].UUID
			answer.WriteString(field(1, field(1, name)+field(2, namespace)+field(3, field(2, field(1, "nvidia.com/gpu")+field(2, id)))))
		}

		return []byte(answer.String()), nil
	})
	for _, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		meta := kubesim.Object{"namespace": namespace, "name": name, "uid": "uid-" + name}
		if strings.HasPrefix(name, "daemon") {
			meta["ownerReferences"] = []any{kubesim.Object{"kind": "DaemonSet", "name": "dcgm", "controller": true}}
		}
		b.sim.AddPod(kubesim.Object{"metadata": meta, "spec": kubesim.Object{"nodeName": "gpu-1"}, "status": kubesim.Object{"phase": "Running"}})
	}

	b.sim.OnEvict(func(pod string) string {
		if b.refuses == "" {
			b.pods = slices.DeleteFunc(b.pods, func(p string) bool { return p == pod })
			b.evicted = append(b.evicted, pod)
		}
		return b.refuses
	})
	b.write("/etc/gpuadm/node.toml", labelSpec+"[node]\ngpu_labels = false\n[disruption]\ndrain_deadline = \"1ms\"\n"+disruption)
	b.label(kubesim.Object{"nvidia.com/mig.config": "seven"})
	return b
}

func (b *busyNode) write(name, text string) {
	b.t.Helper()
	must.OK(b.t, b.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
}

// cordoned is the Node's spec.unschedulable and whether gpuadm's annotation is there.
func (b *busyNode) cordoned() string {
	n := b.sim.Node("gpu-1")
	notes, _ := n["metadata"].(kubesim.Object)["annotations"].(kubesim.Object)
	return fmt.Sprint(n["spec"].(kubesim.Object)["unschedulable"], notes["nvidia.com/gpuadm.cordoned"] != nil)
}

// free is a Node that nothing has cordoned.
const free = "<nil> false"

func (b *busyNode) condition() string {
	conditions, _ := b.sim.Node("gpu-1")["status"].(kubesim.Object)["conditions"].([]any)
	for _, c := range conditions {
		if o := c.(kubesim.Object); o["type"] == "nvidia.com/GPUReady" {
			return fmt.Sprintf("%v %v %v", o["status"], o["reason"], o["message"])
		}
	}

	return ""
}

func (b *busyNode) says(words ...string) {
	b.t.Helper()
	check.Says(b.t, b.said, words...)
}

const (
	two   = "on 1g.10gb@4 1g.10gb@5"
	seven = "on 7g.80gb@0"
)

// TestIdle: a change of the partitions, asked for by the node's label, waits until no pod has one,
// also a pod without a process; the condition names the pod; and no client is paused for it.
func TestIdle(t *testing.T) {
	b := newBusy(t, "", "ml/train")
	b.want(b.gpuadm("apply", "mig", "--unattended"), "75 [pending] "+two)
	b.says("pod ml/train has 1g.10gb@4 of GPU 0", "or wait: once nothing uses the GPUs")
	is := b.condition()
	check.That(t, strings.HasPrefix(is, "False WaitingUntilIdle cannot make mig 0000:17:00.0: ") && strings.Contains(is, "pod ml/train has 1g.10gb@4"), "the condition is %s", is)
	told := len(b.sim.Events())
	b.want(b.gpuadm("apply", "mig", "--unattended"), "75 [] "+two)
	if b.pauses > 0 || b.cordoned() != free || len(b.evicted) > 0 || len(b.sim.Events()) != told {
		t.Errorf("%d pauses, cordoned %s, evicted %v, %d events and then %d", b.pauses, b.cordoned(), b.evicted, told, len(b.sim.Events()))
	}
	b.pods = nil
	b.want(b.gpuadm("apply", "mig", "--unattended"), "0 [success] "+seven)
}

// TestDrain: the pods are evicted by kubelet's identity alone, and the node is uncordoned after the
// change.
func TestDrain(t *testing.T) {
	b := newBusy(t, "policy = \"drain\"\n", "ml/train", "web/infer")
	was := ""
	b.sim.OnEvict(func(pod string) string {
		b.pods = slices.DeleteFunc(b.pods, func(p string) bool { return p == pod })
		b.evicted = append(b.evicted, pod)
		return ""
	})
	b.sim.Fail(kubesim.Fault{
		On: "POST /api/v1/namespaces/ml/pods/train/eviction",
		Do: func(*kubesim.Server) { was = b.cordoned() },
	})
	b.want(b.gpuadm("apply", "mig", "--unattended"), "0 [pending success] "+seven)
	if slices.Sort(b.evicted); !slices.Equal(b.evicted, []string{"ml/train", "web/infer"}) || was != "true true" || b.cordoned() != free {
		t.Errorf("evicted %v while cordoned %s, and then %s\n%s", b.evicted, was, b.cordoned(), b.said)
	}
	_, err := b.Stat("/var/lib/gpuadm/cordoned")
	check.That(t, host.NotExist(err), "the mark of a cordon: %v", err)
}

// TestDrainRefused: where a budget keeps a pod, or a right is missing, nothing is interrupted, the
// node is uncordoned, and the run that comes again makes the change once it may.
func TestDrainRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		set   func(*busyNode)
		words string
	}{
		"a budget": {func(b *busyNode) { b.refuses = "keep" }, "pod ml/train: The disruption budget keep needs 1 healthy pods and has 1 currently"},
		"no right": {func(b *busyNode) {
			b.sim.Fail(kubesim.Fault{On: "POST /api/v1/namespaces/ml/pods", Times: -1, Status: 403})
		}, "may not evict it"},
		"no cordon": {func(b *busyNode) {
			b.sim.Admit(func(_ kubesim.User, _, made kubesim.Object) string { return forbidCordon(made) })
		}, "cannot drain this node: cannot patch the Node gpu-1"},
		"a busy server": {func(b *busyNode) {
			b.sim.Fail(kubesim.Fault{On: "POST /api/v1/namespaces/ml/pods", Times: -1, Status: 503})
		}, "the API server says 503"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBusy(t, "policy = \"drain\"\n", "ml/train")
			tt.set(b)
			got := b.gpuadm("apply", "mig", "--unattended")
			check.That(t, strings.HasPrefix(got, "75 ") && strings.HasSuffix(got, two), "%s\n%s", got, b.said)
			b.says(tt.words, "cannot drain this node")
			check.That(t, b.cordoned() == free && len(b.evicted) == 0, "cordoned %s, evicted %v", b.cordoned(), b.evicted)
			is := b.condition()
			check.That(t, strings.HasPrefix(is, "False WaitingUntilIdle cannot drain this node"), "the condition is %s", is)
			b.refuses = ""
			b.sim.Heal()
			b.sim.Admit(nil)
			b.gpuadm("apply", "mig", "--unattended")
			check.That(t, strings.Contains(b.said, "made in") && len(b.evicted) == 1 && b.cordoned() == free,
				"afterwards evicted %v, cordoned %s\n%s", b.evicted, b.cordoned(), b.said)
		})
	}
}

func forbidCordon(made kubesim.Object) string {
	if made["spec"].(kubesim.Object)["unschedulable"] == true {
		return "no node cordons itself"
	}
	return ""
}

// TestDrainForNothing: no pod is evicted while something that a drain does not end uses the GPUs: a
// DaemonSet's pod, a process of no pod.
func TestDrainForNothing(t *testing.T) {
	b := newBusy(t, "policy = \"drain\"\n", "ml/train", "ml/daemon")
	b.want(b.gpuadm("apply", "mig", "--unattended"), "75 [pending] "+two)
	b.says("a drain leaves pod ml/daemon, which belongs to DaemonSet dcgm")
	b.says("pod ml/daemon has 1g.10gb@5 of GPU 0", "move the pods away: kubectl drain NODE")
	check.That(t, !strings.Contains(b.said, "--allow stop-clients"), "it offers to stop processes of pods:\n%s", b.said)
	check.That(t, !strings.Contains(b.said, "ml/train") && len(b.evicted) == 0 && b.cordoned() == free, "evicted %v, cordoned %s\n%s", b.evicted, b.cordoned(), b.said)
	b = newBusy(t, "policy = \"drain\"\n", "ml/train")
	d := must.Get(b.Driver(t.Context()))(t)
	b.Use("0000:17:00.0", d.GPUs[0].Instances[0].ID, 4242)
	b.want(b.gpuadm("apply", "mig", "--unattended"), "75 [pending] "+two)
	b.says("process 4242 uses 1g.10gb@4")
	check.That(t, len(b.evicted) == 0 && b.cordoned() == free, "evicted %v, cordoned %s\n%s", b.evicted, b.cordoned(), b.said)

	// A DaemonSet's pod that asked for no GPU, and has one open: NVIDIA/gpu-operator issue 2570.
	b = newBusy(t, "policy = \"drain\"\n", "ml/train")
	owner := []any{kubesim.Object{"kind": "DaemonSet", "name": "exporter", "controller": true}}
	b.sim.AddPod(kubesim.Object{
		"metadata": kubesim.Object{"namespace": "ops", "name": "exporter-x", "uid": "11111111-2222-3333-4444-555555555555", "ownerReferences": owner},
		"spec":     kubesim.Object{"nodeName": "gpu-1"}, "status": kubesim.Object{"phase": "Running"},
	})
	for _, dir := range []string{"/proc/4712", "/proc/4712/fd"} {
		must.OK(t, b.Mkdir(dir, host.Attr{Mode: 0o755}))
	}
	b.write("/proc/4712/comm", "dcgm-exporter\n")
	b.write("/proc/4712/cgroup", "0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-02.scope\n")
	must.OK(t, b.Symlink("/proc/4712/fd/3", "/dev/nvidiactl"))
	b.Use("0000:17:00.0", d.GPUs[0].Instances[0].ID, 4712)
	b.want(b.gpuadm("apply", "mig", "--unattended"), "75 [pending] "+two)
	b.says("process 4712 (dcgm-exporter)", "a drain leaves pod ops/exporter-x, which belongs to DaemonSet exporter")
	check.That(t, len(b.evicted) == 0 && b.cordoned() == free, "evicted %v, cordoned %s\n%s", b.evicted, b.cordoned(), b.said)

	// A static pod's mirror has the Node as its owner.
	b = newBusy(t, "policy = \"drain\"\n", "ml/train")
	owner = []any{kubesim.Object{"kind": "Node", "name": "gpu-1", "controller": true}}
	b.sim.AddPod(kubesim.Object{
		"metadata": kubesim.Object{
			"namespace": "ops", "name": "exporter-x", "uid": "11111111-2222-3333-4444-555555555555", "ownerReferences": owner,
			"annotations": kubesim.Object{"kubernetes.io/config.mirror": "x"},
		},
		"spec": kubesim.Object{"nodeName": "gpu-1"}, "status": kubesim.Object{"phase": "Running"},
	})
	for _, dir := range []string{"/proc/4712", "/proc/4712/fd"} {
		must.OK(t, b.Mkdir(dir, host.Attr{Mode: 0o755}))
	}
	b.write("/proc/4712/comm", "dcgm-exporter\n")
	b.write("/proc/4712/cgroup", "0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-02.scope\n")
	must.OK(t, b.Symlink("/proc/4712/fd/3", "/dev/nvidiactl"))
	b.Use("0000:17:00.0", d.GPUs[0].Instances[0].ID, 4712)
	b.want(b.gpuadm("apply", "mig", "--unattended"), "75 [pending] "+two)
	b.says("a drain leaves the static pod ops/exporter-x: kubelet runs it as long as its file is on this machine")
}

// TestDrainOperatorsCordon: a node that an operator has cordoned stays cordoned.
func TestDrainOperatorsCordon(t *testing.T) {
	b := newBusy(t, "policy = \"drain\"\n", "ml/train")
	b.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["spec"].(kubesim.Object)["unschedulable"] = true
	})
	b.want(b.gpuadm("apply", "mig", "--unattended"), "0 [pending success] "+seven)
	check.That(t, len(b.evicted) == 1 && b.cordoned() == "true false", "evicted %v, cordoned %s\n%s", b.evicted, b.cordoned(), b.said)
}

// TestDrainCut: a run that is killed anywhere, also between cordon and uncordon, leaves no cordon
// behind for long: the next run ends it.
func TestDrainCut(t *testing.T) {
	between := 0
	for cut := 0; cut < 200; cut += check.Every(9) {
		b := newBusy(t, "policy = \"drain\"\n", "ml/train")
		b.CutAt(cut)
		if b.gpuadmCut("apply", "mig", "--unattended") == 0 {
			check.That(t, between != 0, "no cut was between cordon and uncordon")
			return
		}
		b.Boot(simhost.LoseAll)
		if b.cordoned() == "true true" {
			between++
		}
		b.gpuadm("apply", "mig", "--unattended")
		d, err := b.Driver(context.Background())
		if err != nil || b.cordoned() != free || len(d.GPUs[0].Instances) != 1 {
			t.Errorf("cut at %d: cordoned %s, %v, %v\n%s", cut, b.cordoned(), d.GPUs[0].Instances, err, b.said)
		}
	}

	t.Error("no run went to its end")
}

// TestDrainStays: a reboot that the change needs keeps the cordon, and undo ends one that was left.
func TestDrainStays(t *testing.T) {
	b := newBusy(t, "", "ml/train")
	b.sim.EditNode("gpu-1", func(n kubesim.Object) {
		n["spec"].(kubesim.Object)["unschedulable"] = true
		n["metadata"].(kubesim.Object)["annotations"] = kubesim.Object{"nvidia.com/gpuadm.cordoned": "2026-11-23T08:00:00Z"}
	})
	b.gpuadm("apply", "mig", "--unattended")
	check.That(t, b.cordoned() == "true true", "without the machine's mark: cordoned %s", b.cordoned())
	b.write("/var/lib/gpuadm/cordoned", "gpu-1\n")
	b.gpuadm("apply", "mig", "--unattended")
	check.That(t, b.cordoned() == free, "after a run that waits: cordoned %s\n%s", b.cordoned(), b.said)
}

// TestRejectedOnce: where the API server rejects kubelet's certificate, all labels wait for the
// same: gpuadm says it once, with what to do.
func TestRejectedOnce(t *testing.T) {
	b := newBusy(t, "")
	b.write("/etc/gpuadm/node.toml", "format = 1\n[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nlayout = \"seven\"\n[node]\nlabels = {\"a/b\" = \"c\"}\n")
	b.sim.Fail(kubesim.Fault{Status: 401, Times: -1})
	for _, args := range [][]string{{"apply"}, {"plan"}, {"plan", "-v"}, {"status"}} {
		b.said = ""
		b.gpuadm(args...)
		n := strings.Count(b.said, "rejects the credentials (401)")
		check.That(t, n == 1 && strings.Count(b.said, "kubectl create token") == 1 && (args[0] != "apply" || strings.Count(b.said, "deferred") <= 1),
			"%q says it %d times:\n%s", args, n, b.said)
	}
}
