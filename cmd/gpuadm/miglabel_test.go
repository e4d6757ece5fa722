// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// labelled is a joined machine with GPUs, of which the node's label names the layout.
type labelled struct {
	*simhost.Node
	t      *testing.T
	sim    *kubesim.Server
	states []string // what the label of the state was set to, each once
	pauses int      // how often the device plugin was paused
	said   string   // by the last command
}

const (
	labelFile = `version: v1
mig-configs:
  two:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2}}
  three:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 3}}
  seven:
    - {devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}
`
	labelSpec  = "format = 1\n[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nfollow_label = true\n"
	devicePlug = "nvidia.com/gpu.deploy.device-plugin"
	// What the DaemonSet of a device plugin looks like on its node, in or out of the operator.
	plugin = "-- proc/4711/comm --\nnvidia-device-p\n-- proc/4711/cgroup --\n0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-01.scope\n" +
		"-- proc/4711/fd/3 link=/dev/nvidiactl --\n-- dev/nvidiactl device=195:255 --\n-- proc/devices --\nCharacter devices:\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n\nBlock devices:\n"
)

func newLabelled(t *testing.T, labels kubesim.Object) *labelled {
	t.Helper()
	archive := must.Get(os.ReadFile("../../test/hosts/mig-h100-a100-t4.txtar"))(t)
	machine := strings.Replace(string(archive), "[[unit]]", "[[unit]]\nname = \"kubelet.service\"\nenabled = \"enabled\"\nactive = \"active\"\n\n[[unit]]", 1) +
		"-- etc/systemd/system/kubelet.service --\n[Service]\nExecStart=/usr/bin/kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override=gpu-1\n[Install]\nWantedBy=multi-user.target\n" +
		"-- usr/bin/kubelet mode=0755 size=77660428 --\n" +
		"-- etc/kubernetes/kubelet.conf mode=0600 --\n" + `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://api.example:6443"}}], users: [{name: u, user: {token: "planted-kubelet"}}]}
` + "-- etc/gpuadm/node.toml --\n" + labelSpec + "-- etc/gpuadm/mig.yaml --\n" + labelFile + plugin
	n := must.Get(simhost.New([]byte(machine)))(t)
	l := &labelled{Node: n, t: t, sim: kubesim.New(kubesim.User{})}
	l.sim.Token("planted-kubelet", kubesim.Node("gpu-1"))
	l.sim.AddNode("gpu-1", map[string]string{"kubernetes.io/os": "linux"})
	l.label(labels)
	l.sim.Admit(func(_ kubesim.User, old, made kubesim.Object) string {
		before, after := labelsIn(old), labelsIn(made)
		if state, _ := after["nvidia.com/mig.config.state"].(string); state != "" && before["nvidia.com/mig.config.state"] != state {
			l.states = append(l.states, state)
		}
		if after[devicePlug] == "paused-for-mig-change" && before[devicePlug] != after[devicePlug] {
			l.pauses++
		}
		return ""
	})
	n.Serve("api.example:6443", l.sim)
	return l
}

func labelsIn(node kubesim.Object) kubesim.Object {
	meta, _ := node["metadata"].(kubesim.Object)
	labels, _ := meta["labels"].(kubesim.Object)
	return labels
}

// label sets labels as kubectl does.
func (l *labelled) label(labels kubesim.Object) {
	l.sim.EditNode("gpu-1", func(n kubesim.Object) {
		all := kubesim.Object{}
		for _, some := range []kubesim.Object{labelsIn(n), labels} {
			for key, value := range some {
				all[key] = value
			}
		}

		n["metadata"].(kubesim.Object)["labels"] = all
	})
}

// gpuadm runs a command, and says its exit code, the states since the last, and how GPU 0 is
// partitioned now.
func (l *labelled) gpuadm(args ...string) string {
	l.t.Helper()
	var out strings.Builder
	e := envOn(l.Node, &out)
	l.states = nil
	code := run(l.t.Context(), e, args)
	l.said = out.String()
	d := must.Get(l.Driver(l.t.Context()))(l.t)
	return fmt.Sprintf("%d %v %s", code, l.states, mig.StateOf(d.GPUs[0]))
}

func (l *labelled) want(got, want string) {
	l.t.Helper()
	check.That(l.t, got == want, "got  %s\nwant %s\n%s", got, want, l.said)
}

// TestMIGLabel: a team that leaves the operator keeps its commands: kubectl label node …
// nvidia.com/mig.config=…
func TestMIGLabel(t *testing.T) {
	l := newLabelled(t, kubesim.Object{devicePlug: "true"})
	l.want(l.gpuadm("apply", "mig"), "0 [] off")
	_, err := l.Stat("/var/lib/gpuadm/mig-layout")
	check.That(t, host.NotExist(err), "a name is kept, and there was no label: %v", err)
	l.label(kubesim.Object{"nvidia.com/mig.config": "two"})
	l.want(l.gpuadm("plan", "mig"), "0 [] off")
	check.That(t, strings.Contains(l.said, "the layout is two, by the node's label nvidia.com/mig.config"), "plan does not say where the layout comes from:\n%s", l.said)
	l.want(l.gpuadm("apply", "mig"), "0 [pending success] on 1g.10gb@4 1g.10gb@5")
	two := "on 1g.10gb@4 1g.10gb@5"
	if labelsIn(l.sim.Node("gpu-1"))[devicePlug] != "true" || l.pauses != 1 {
		t.Errorf("the device plugin was paused %d times, and is %v", l.pauses, labelsIn(l.sim.Node("gpu-1")))
	}
	l.want(l.gpuadm("apply", "mig"), "0 [] "+two)
	l.label(kubesim.Object{"nvidia.com/mig.config": "nonsense"})
	l.want(l.gpuadm("apply", "mig"), "1 [failed] "+two)
	l.label(kubesim.Object{"nvidia.com/mig.config": "two"})
	l.want(l.gpuadm("apply", "mig"), "0 [success] "+two)
	// No API server answers: the last name counts.
	l.sim.Fail(kubesim.Fault{On: "GET", Status: 403})
	l.want(l.gpuadm("apply", "mig"), "0 [] "+two)
	l.sim.Heal()
	// The operator's manager comes.
	l.label(kubesim.Object{"nvidia.com/mig.config": "three", "nvidia.com/gpu.deploy.mig-manager": "true"})
	touches := l.Touches()
	l.want(l.gpuadm("apply", "mig"), "1 [] "+two)
	check.That(t, l.Touches() == touches && strings.Contains(l.said, "nvidia.com/gpu.deploy.mig-manager=false"), "two owners, %d touches:\n%s", l.Touches()-touches, l.said)
}

// TestMIGLabelBusy: with policy = "never" a change that failed is made again without a pause, until
// an operator asks or the label changes.
func TestMIGLabelBusy(t *testing.T) {
	l := newLabelled(t, kubesim.Object{devicePlug: "true", "nvidia.com/mig.config": "two"})
	must.OK(t, l.WriteFile("/etc/gpuadm/node.toml", []byte(labelSpec+"[disruption]\npolicy = \"never\"\n"), host.Attr{Mode: 0o644}))
	l.gpuadm("apply", "mig")
	d := must.Get(l.Driver(t.Context()))(t)
	for _, in := range d.GPUs[0].Instances {
		l.Use("0000:17:00.0", in.ID, 4713)
	}
	l.label(kubesim.Object{"nvidia.com/mig.config": "seven"})
	for i, want := range []int{2, 2, 3} {
		args := [][]string{{"apply", "mig", "--unattended"}, {"apply", "mig", "--unattended"}, {"apply", "mig"}}[i]
		l.gpuadm(args...)
		if l.pauses != want || labelsIn(l.sim.Node("gpu-1"))["nvidia.com/mig.config.state"] != "failed" {
			t.Errorf("%v: paused %d times, want %d: %v\n%s", args, l.pauses, want, labelsIn(l.sim.Node("gpu-1")), l.said)
		}
	}
}

// TestMIGLabelCut: a run that was killed while the clients are paused leaves none of them paused
// for long.
func TestMIGLabelCut(t *testing.T) {
	for cut := 0; ; cut += check.Every(3) {
		l := newLabelled(t, kubesim.Object{devicePlug: "true", "nvidia.com/mig.config": "two"})
		l.CutAt(cut)
		got := l.gpuadmCut("apply", "mig")
		if got == 0 {
			check.That(t, cut >= 3, "only %d touches", cut)
			return
		}
		l.Boot(simhost.LoseAll)
		l.gpuadm("apply", "mig")
		labels := labelsIn(l.sim.Node("gpu-1"))
		check.That(t, labels[devicePlug] == "true" && labels["nvidia.com/mig.config.state"] == "success", "cut at %d: %v\n%s", cut, labels, l.said)
	}
}

func (l *labelled) gpuadmCut(args ...string) int {
	return run(l.t.Context(), envOn(l.Node, io.Discard), args)
}

// TestMIGLabelPlugin: without the operator the device plugin is ended after a change, and starts
// again with the new partitions.
func TestMIGLabelPlugin(t *testing.T) {
	l := newLabelled(t, kubesim.Object{"nvidia.com/mig.config": "two"})
	l.want(l.gpuadm("apply", "mig"), "0 [pending success] on 1g.10gb@4 1g.10gb@5")
	names, err := l.ReadDir(filepath.Join("/proc", "4711", "fd"))
	check.That(t, err != nil || len(names) == 0, "the device plugin still runs, with %v open\n%s", names, l.said)
	_, has := labelsIn(l.sim.Node("gpu-1"))[devicePlug]
	check.That(t, !has, "a label of the operator was made")
}

// TestMIGChangeLeavesFeatureDiscovery: GPU Feature Discovery reads the partitions again once a
// minute, so it runs on where the device plugin is ended: --sleep-interval in
// cmd/gpu-feature-discovery/main.go of https://github.com/NVIDIA/k8s-device-plugin, and
// gfd.sleepInterval of its chart's values.yaml.
func TestMIGChangeLeavesFeatureDiscovery(t *testing.T) {
	l := newLabelled(t, kubesim.Object{"nvidia.com/mig.config": "two"})
	for _, dir := range []string{"/proc/4712", "/proc/4712/fd"} {
		must.OK(t, l.Mkdir(dir, host.Attr{Mode: 0o555}))
	}
	cgroup := must.Get(l.ReadFile("/proc/4711/cgroup"))(t)
	for name, text := range map[string]string{"comm": "gpu-feature-dis\n", "cgroup": strings.ReplaceAll(string(cgroup), "01234567_89ab", "11234567_89ab")} {
		must.OK(t, l.WriteFile("/proc/4712/"+name, []byte(text), host.Attr{Mode: 0o444}))
	}
	must.OK(t, l.Symlink("/proc/4712/fd/3", "/dev/nvidiactl"))
	l.want(l.gpuadm("apply", "mig"), "0 [pending success] on 1g.10gb@4 1g.10gb@5")
	names, err := l.ReadDir("/proc/4711/fd")
	check.That(t, err != nil || len(names) == 0, "the device plugin still runs, with %v open\n%s", names, l.said)
	names, err = l.ReadDir("/proc/4712/fd")
	check.That(t, err == nil && len(names) == 1, "GPU Feature Discovery was ended: %v, %v\n%s", names, err, l.said)
}

// TestPodFollows: the DaemonSet's pod looks at its Node's label only if the spec that its apply
// reads has follow_label.
func TestPodFollows(t *testing.T) {
	for text, want := range map[string]bool{"": false, "format = 1\n": false, "format = 1\n[mig]\nfile = \"/f.yaml\"\nfollow_label = true\n": true} {
		n := must.Get(simhost.New([]byte("-- etc/gpuadm/ --\n")))(t)
		if text != "" {
			must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", []byte(text), host.Attr{Mode: 0o644}))
		}
		check.Equal(t, (&common{}).podFollows(n), want, "%q:", text)
	}
}

// twoH100 is a machine with two GPUs whose driver answers.
func twoH100(t *testing.T, toml string, tables ...string) *simhost.Node {
	t.Helper()
	text := "-- sim.toml --\n" + strings.Join(tables, "")
	bus := ""
	for _, address := range []string{"0000:17:00.0", "0000:2a:00.0"} {
		text += "[[gpu]]\nmodel = \"H100-80\"\n"
		bus += "-- sys/bus/pci/devices/" + address + "/uevent --\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n"
	}

	n := must.Get(simhost.New([]byte(text + bus + "-- etc/gpuadm/node.toml --\nformat = 1\n" + toml)))(t)
	return n
}

func outputOn(h host.Host, root bool, argv ...string) (int, string) {
	var out strings.Builder
	e := envOn(h, &out)
	e.root, e.read = root, func(string) ([]byte, error) { return nil, io.EOF }
	return run(context.Background(), e, argv), out.String()
}

// TestApplyNamesEveryGPU: what plan says of each GPU, apply says too when it changes them.
func TestApplyNamesEveryGPU(t *testing.T) {
	n := twoH100(t, "[[mig.gpu]]\nlayout = { \"1g.10gb\" = 7 }\n")
	_, plan := outputOn(n, true, "plan", "mig")
	code, apply := outputOn(n, true, "apply", "mig")
	for _, line := range []string{"GPU 0: 7 × 1g.10gb", "GPU 1: 7 × 1g.10gb"} {
		check.That(t, code == 0 && strings.Contains(plan, line) && strings.Contains(apply, line), "exit code %d; %q is not in both of\n%s\n%s", code, line, plan, apply)
	}
}

// TestNamesPausedServices: plan and apply name the services that the change stops for a while, each
// once; those that do not run are not among them, and a change that only makes partitions pauses
// none.
func TestNamesPausedServices(t *testing.T) {
	const units = "[[unit]]\nname = \"nvidia-dcgm.service\"\nactive = \"active\"\n[[unit]]\nname = \"nvidia-persistenced.service\"\nactive = \"active\"\n[[unit]]\nname = \"nvsm.service\"\nactive = \"inactive\"\n"
	n := twoH100(t, "[[mig.gpu]]\nlayout = { \"1g.10gb\" = 2 }\n", units)
	for _, step := range []struct{ layout, services string }{
		{`"1g.10gb" = 2`, "nvidia-dcgm.service, nvidia-persistenced.service"}, // the mode changes
		{`"1g.10gb" = 3`, ""},
		{`"7g.80gb" = 1`, "nvidia-dcgm.service"},
	} {
		must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", []byte("format = 1\n[[mig.gpu]]\nlayout = { "+step.layout+" }\n"), host.Attr{Mode: 0o644}))
		_, plan := outputOn(n, true, "plan", "mig")
		code, apply := outputOn(n, true, "apply", "mig")
		plans, made := strings.Contains(plan, "Pauses and resumes "+step.services+"."), strings.Contains(apply, "; paused and resumed "+step.services+". To undo")
		if step.services == "" {
			plans, made = !strings.Contains(plan, "Pauses"), !strings.Contains(apply, "paused")
		}
		check.That(t, code == 0 && plans && made, "%s: exit code %d, want %q in both of\n%s\n%s", step.layout, code, step.services, plan, apply)
	}
}

// refused is a machine whose driver does not let this process change a GPU.
type refused struct{ host.Host }

func (refused) SetMIGMode(context.Context, string, bool) error {
	return &host.GPUError{
		Call: "nvmlDeviceSetMigMode",
		GPU:  "0000:17:00.0",
		Code: "NO_PERMISSION",
	}
}

// TestNoPermissionSaysRoot: an error about missing rights says what to do.
func TestNoPermissionSaysRoot(t *testing.T) {
	code, out := outputOn(refused{twoH100(t, "[[mig.gpu]]\n")}, true, "apply", "mig")
	check.That(t, code != 0 && strings.Contains(out, "NO_PERMISSION") && strings.Contains(out, "run it as root"), "exit code %d\n%s", code, out)
}

// TestGateStaysShut: a GPU that waits alone leaves the node not ready: apply says so by its exit
// code, and kubelet may not start.
func TestGateStaysShut(t *testing.T) {
	n := twoH100(t, "[mig]\nfailure = \"per-gpu\"\n[[mig.gpu]]\nlayout = { \"1g.10gb\" = 7 }\n")
	n.Use("0000:1f:00.0", -1, 4711)
	code, out := outputOn(n, true, "apply")
	gate, why := outputOn(n, true, "gate")
	check.That(t, code != 0 && gate != 0, "apply: exit code %d\n%s\ngate: exit code %d\n%s", code, out, gate, why)
}
