// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// stopped is a machine's tree in which a unit that failed counts as one that does not run: undo
// stops what a repair has started, and does not make it fail.
func stopped(n *simhost.Node) string {
	return strings.ReplaceAll(tree(n), " failed", " inactive")
}

// repairing is the engine that repairs a fault on a machine without a spec.
func repairing(t testing.TB, r stages.Repair) *converge.Engine {
	t.Helper()
	e := engine(t, "")
	e.Stages, e.Before, e.Repair = []converge.Stage{r.Stage()}, nil, r.Code
	return e
}

// repairable are the repairs that have something to do on a machine.
func repairable(t testing.TB, m machine) (list []stages.Repair) {
	t.Helper()
	for _, r := range stages.Repairs() {
		p, err := repairing(t, r).Plan(context.Background(), m.boot(t))
		if err == nil && len(p.Cannot()) == 0 && p.Now() > 0 {
			list = append(list, r)
		}
	}

	return list
}

// A repair is undone as every run is. It is journalled under its code.
func TestRepairAndUndo(t *testing.T) {
	repaired := map[string]bool{}
	for _, m := range machines(t) {
		for _, r := range repairable(t, m) {
			n := m.boot(t)
			first := stopped(n)
			res := apply(t, n, repairing(t, r))
			if res.Reboot != "" {
				continue
			}
			repaired[r.Code] = true
			p := plan(t, n, repairing(t, r))
			check.That(t, p.Now() <= 0, "%s on %s: still pending:\n%s", r.Code, m.name, namesNow(p.Changes))
			runs := converge.ReadJournal(n).Runs()
			check.That(t, len(runs) == 1 && runs[0].Repair == r.Code && runs[0].Result == "ok", "%s on %s: journalled as %+v", r.Code, m.name, runs)
			undo(t, n, engine(t, ""), "all")
			compare(t, r.Code+" on "+m.name+", undone", first, stopped(n))
		}
	}

	check.That(t, len(repaired) >= 2, "only %v had something to repair", repaired)
}

// An apply neither reverts nor adopts what a repair made: it ends as where another process had
// repaired the machine.
func TestApplyLeavesRepairs(t *testing.T) {
	tested := 0
	able := map[string][]stages.Repair{}
	for _, c := range lawCases(t) {
		key := string(c.machine.archive)
		if _, known := able[key]; !known {
			able[key] = repairable(t, c.machine)
		}
		for _, r := range able[key] {
			if c.wish.engine(t).Spec.Has(r.Section) {
				continue
			}
			n := c.machine.boot(t)
			first := stopped(n)
			if apply(t, n, repairing(t, r)).Reboot != "" {
				continue
			}
			repaired := stopped(n)
			other := repairedByHand(t, c.machine, r)
			if len(plan(t, n, c.wish.engine(t)).Cannot()) > 0 {
				continue
			}
			tested++
			apply(t, n, c.wish.engine(t))
			apply(t, other, c.wish.engine(t))
			compare(t, c.name+": applied after "+r.Code, stopped(other), stopped(n))
			apply(t, n, wish{}.engine(t)) // every section is gone
			compare(t, c.name+": all sections are gone", stopped(other), stopped(n))
			if len(converge.ReadJournal(n).Runs()) > 1 {
				undo(t, n, engine(t, ""), "")
				compare(t, c.name+": the apply is undone", repaired, stopped(n))
			}
			undo(t, n, engine(t, ""), "all")
			compare(t, c.name+": all is undone", first, stopped(n))
		}
	}

	check.That(t, tested >= 20, "only %d applies after a repair were tested", tested)
}

// repairedByHand is a machine that another process repaired: it has no journal.
func repairedByHand(t testing.TB, m machine, r stages.Repair) *simhost.Node {
	t.Helper()
	n := m.boot(t)
	apply(t, n, repairing(t, r))
	must.OK(t, n.Remove(converge.Home+"/journal.jsonl"))
	return n
}

// A repair lifts no hold, and supersedes no undo that was cut short without saying so.
func TestRepairLiftsNoHold(t *testing.T) {
	m, r := handlerLost(t)
	n := m.boot(t)
	apply(t, n, wish{text: labelsA}.engine(t))
	undo(t, n, engine(t, ""), "")
	held := converge.ReadJournal(n).Held()
	apply(t, n, repairing(t, r))
	if held == "" || converge.ReadJournal(n).Held() != held {
		t.Errorf("held %q, then %q", held, converge.ReadJournal(n).Held())
	}
	apply(t, n, repairing(t, r))
	check.That(t, converge.ReadJournal(n).Held() == held, "a repair with nothing to do has lifted the hold")
}

// A power cut at any touch of a repair: the same repair continues it, undo ends in the first tree,
// and an apply leaves what was made.
func TestRepairIsCutShort(t *testing.T) {
	m, r := handlerLost(t)
	whole := m.boot(t)
	first := stopped(whole)
	apply(t, whole, repairing(t, r))
	repaired := stopped(whole)
	for at := range whole.Touches() {
		n := m.boot(t)
		n.CutAt(at)
		_, err := repairing(t, r).Apply(context.Background(), n)
		must.That(t, err != nil, "not cut")
		n.Boot(simhost.LoseAll)
		switch at % 3 {
		case 0:
			apply(t, n, repairing(t, r))
			compare(t, "continued", repaired, stopped(n))
			runs := converge.ReadJournal(n).Runs()
			check.That(t, len(runs) <= 1, "cut at %d: %d runs", at, len(runs))
		case 1:
			unattended := wish{text: labelsA}.engine(t)
			unattended.Unattended = true
			_, err := unattended.Apply(context.Background(), n)
			must.That(t, err == nil || errors.As(err, new(trouble.Wait)), "%v", err)
			for _, run := range converge.ReadJournal(n).Runs() {
				if run.Repair != "" && slices.ContainsFunc(run.Makes, func(c converge.Change) bool { return c.Stage != "repair" }) {
					t.Errorf("cut at %d: the apply continued the repair", at)
				}
			}
		}

		undo(t, n, engine(t, ""), "all")
		compare(t, "undone", first, stopped(n))
	}
}

// handlerLost is a node with NVIDIA's runtime, and without the handler that runs it.
func handlerLost(t testing.TB) (machine, stages.Repair) {
	t.Helper()
	for _, m := range machines(t) {
		if m.name != "ubuntu24-h100" {
			continue
		}
		for _, r := range repairable(t, m) {
			if strings.HasPrefix(r.About, "add NVIDIA's handler") {
				return m, r
			}
		}
	}

	t.Fatal("cannot find the machine that lost its handler, or its repair")
	return machine{}, stages.Repair{}
}

// A repair starts from what it finds: what gpuadm made before stays, and undo of the repair
// restores what the repair found, not what was before gpuadm.
func TestRepairStartsFromWhatItFinds(t *testing.T) {
	const config = "/etc/containerd/config.toml"
	repairs := stages.Repairs()
	handler := repairs[slices.IndexFunc(repairs, func(r stages.Repair) bool {
		return r.Code == "RUN-001"
	})]
	tested := 0
	for _, m := range machines(t) {
		n := m.boot(t)
		const s = "[runtime]\nset_as_default = true\n"
		if m.name != "debian12-containerd16" && m.name != "ubuntu24-h100" { // containerd there has no other owner
			continue
		}
		apply(t, n, engine(t, s))
		made, err := n.ReadFile(config)
		name := "runtimes.nvidia"
		at := strings.Index(string(made), name)
		if err != nil || at < 0 || !strings.Contains(string(made), `default_runtime_name = "nvidia"`) {
			continue
		}
		edited := strings.ReplaceAll(string(made), name, "runtimes.other") // an operator takes the handler away, and leaves the default
		must.OK(t, n.WriteFile(config, []byte(edited), host.Attr{Mode: 0o644}))
		tested++
		apply(t, n, repairing(t, handler))
		after, _ := n.ReadFile(config)
		if text := string(after); !strings.Contains(text, name) || !strings.Contains(text, `default_runtime_name = "nvidia"`) || !strings.Contains(text, "runtimes.other") {
			t.Errorf("%s: the repair did not start from what it found:\n%s", m.name, text)
		}
		undo(t, n, engine(t, ""), "")
		undone, _ := n.ReadFile(config)
		check.That(t, string(undone) == edited, "%s: undo of the repair did not restore what the repair found:\n%s", m.name, undone)
	}

	check.That(t, tested != 0, "no machine was tested")
}

// swap is text of a recorded machine, and what it becomes; "" before appends.
type swap struct{ from, to string }

// brokenMachine is a recorded machine with one fault. like is the public report that it imitates.
type brokenMachine struct {
	name, code, like string
	on               string // the recorded machine
	edits            []swap
	after            func(t *testing.T, n *simhost.Node) // what happens once it runs
	then             string                              // what is left after the repair: another fault; unhealed where the simulation cannot repair
	stays            bool                                // undo keeps the repair
}

const unhealed = "unhealed"

// working makes of the recorded Debian 13 node one with a driver that answers, in a cluster.
func working() []swap {
	gpus := ""
	for _, at := range []string{"17", "3d", "b1", "d8"} {
		gpus += fmt.Sprintf("[[gpu]]\nmodel = \"L40S\"\naddress = \"0000:%s:00.0\"\n", at)
	}
	return []swap{
		{"-- sim.toml --\n", "-- sim.toml --\n[driver]\nversion = \"580.105.08\"\n" + gpus},
		{"-- etc/kubernetes/kubelet.conf mode=0600 size=1940 --\n", "-- etc/kubernetes/kubelet.conf mode=0600 --\n" + kubeconfig("token: of-the-test")},
	}
}

// kubeconfig is kubelet's, with these credentials.
func kubeconfig(user string) string {
	return "current-context: c\ncontexts:\n- {name: c, context: {user: u}}\nusers:\n- name: u\n  user: {" + user + "}\n"
}

// ended is a client certificate that has ended, as a kubeconfig holds it.
func ended(t *testing.T) string {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "system:node:n"},
		NotAfter:     time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, of, of, key.Public(), key))(t)
	data := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{
		Type:  "CERTIFICATE",
		Bytes: der,
	}))
	return "client-certificate-data: " + data + ", client-key-data: a2V5"
}

const (
	kubeletUnit    = "name = \"kubelet.service\"\nenabled = \"enabled\"\nactive = "
	containerdUnit = "name = \"containerd.service\"\nenabled = \"enabled\"\nactive = "
	cdiSpec        = "-- var/run/cdi/other.yaml --\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"
)

func brokenMachines(t *testing.T) []brokenMachine {
	t.Helper()
	const d13, mig3 = "debian13-containerd17", "mig-h100-a100-t4"
	write := func(name, text string) func(t *testing.T, n *simhost.Node) {
		return func(t *testing.T, n *simhost.Node) {
			must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
		}
	}

	return []brokenMachine{
		{
			name: "handler lost", code: "RUN-001", on: d13, like: "https://github.com/NVIDIA/gpu-operator/issues/730",
			edits: []swap{{"containerd.runtimes.nvidia", "containerd.runtimes.kata"}, {"\"/usr/bin/nvidia-container-runtime\"", "\"/usr/bin/kata\""}},
		},
		{name: "edited by hand", code: "RUN-002", on: d13, like: "https://github.com/NVIDIA/gpu-operator/issues/598", after: write("/etc/containerd/conf.d/50-mirror.toml", "version = 2\n")},
		{name: "a file that the daemon rejects", code: "RUN-003", on: d13, like: "https://github.com/containerd/containerd/issues/12104", after: rejected},
		{
			name: "kubelet's configuration is not YAML", code: "KUB-015", on: d13, like: "https://github.com/kubernetes/kubeadm/issues/2323", after: func(t *testing.T, n *simhost.Node) {
				write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n\tcgroupDriver: systemd\n")(t, n)
				must.OK(t, n.Refuse("kubelet.service", "\n\tcgroupDriver"))
			},
		},
		{name: "no TOML", code: "RUN-003", on: d13, like: "https://github.com/NVIDIA/gpu-operator/issues/143", edits: []swap{{"imports = [\"/etc", "imports = \"/etc"}}},
		{
			name: "no TOML, and stopped", code: "RUN-003", on: d13, like: "https://github.com/NVIDIA/gpu-operator/issues/143",
			edits: []swap{{"imports = [\"/etc", "imports = \"/etc"}, {containerdUnit + "\"active\"", containerdUnit + "\"failed\""}},
		},
		{name: "CRI switched off", code: "RUN-003", on: d13, like: "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1430", edits: []swap{{"imports = [", "disabled_plugins = [\"cri\"]\nimports = ["}}},
		{
			name: "toolkit removed", code: "RUN-004", on: d13, like: "https://github.com/NVIDIA/nvidia-container-runtime/issues/98",
			edits: []swap{{"-- usr/bin/nvidia-container-runtime mode=0755 size=3862952 --\n", ""}, {"default_runtime_name = \"runc\"", "default_runtime_name = \"nvidia\""}},
		},
		{name: "engine stopped", code: "RUN-005", on: d13, like: "https://github.com/kubernetes/kubernetes/issues/110383", edits: []swap{{containerdUnit + "\"active\"", containerdUnit + "\"inactive\""}}},
		{
			name: "engine and kubelet stopped", code: "RUN-005", then: "KUB-001", on: d13, like: "https://github.com/kubernetes/kubernetes/issues/110383",
			edits: []swap{{containerdUnit + "\"active\"", containerdUnit + "\"inactive\""}, {kubeletUnit + "\"active\"", kubeletUnit + "\"failed\""}},
		},
		{name: "engine ends again and again", code: "RUN-010", on: d13, like: "https://github.com/moby/moby/issues/34091", edits: []swap{{containerdUnit + "\"active\"", containerdUnit + "\"activating\"\nsub = \"auto-restart\""}}},
		{name: "cgroup drivers differ", code: "RUN-006", on: d13, like: "https://github.com/containerd/containerd/issues/7276", edits: []swap{{"cgroupDriver: systemd", "cgroupDriver: cgroupfs"}}},
		{
			name: "persistence daemon stopped", code: "GPU-010", on: d13, like: "https://docs.nvidia.com/deploy/driver-persistence/overview.html",
			edits: []swap{{"-- sim.toml --\n", "-- sim.toml --\n[[unit]]\nname = \"nvidia-persistenced.service\"\nenabled = \"enabled\"\nactive = \"failed\"\n"}},
		},
		{name: "half-configured", code: "PKG-002", stays: true, on: d13, like: "https://github.com/Azure/AKS/issues/729", edits: []swap{
			{"-- sim.toml --\n", "-- sim.toml --\n[[command]]\nargv = [\"env\", \"OMP_NUM_THREADS=1\"]\nprefix = true\nwrites = { \"/var/lib/dpkg/status\" = \"Package: dpkg\\nStatus: install ok installed\\nArchitecture: amd64\\nVersion: 1.22.21\\n\" }\n"},
			{"Package: kubelet\nStatus: install ok installed", "Package: kubelet\nStatus: install ok half-configured"},
		}},
		{name: "kubelet stopped", code: "KUB-001", on: d13, like: "https://github.com/kubernetes/kubeadm/issues/1008", edits: []swap{{kubeletUnit + "\"active\"", kubeletUnit + "\"inactive\""}}},
		{name: "kubelet ends again and again", code: "KUB-014", on: d13, like: "https://github.com/kubernetes/kubernetes/issues/83936", edits: []swap{{kubeletUnit + "\"active\"", kubeletUnit + "\"activating\"\nsub = \"auto-restart\""}}},
		{name: "kubelet on another engine", code: "KUB-002", on: d13, like: "https://github.com/kubernetes/kubeadm/issues/915", edits: []swap{{"unix:///var/run/containerd/containerd.sock", "unix:///var/run/crio/crio.sock"}}},
		{name: "two device plugins", code: "KUB-003", on: d13, like: "https://github.com/Project-HAMi/HAMi/issues/2076", edits: []swap{{"", "-- proc/711/comm --\nnvidia-device-p\n-- proc/944/comm --\nnvidia-device-p\n"}}},
		{name: "device plugin killed", code: "KUB-004", on: d13, like: "https://github.com/kubernetes/kubernetes/issues/92396", edits: []swap{{"", "-- var/lib/kubelet/device-plugins/nvidia-gpu.sock --\n"}}},
		{name: "certificate ended", code: "KUB-005", on: d13, like: "https://github.com/kubernetes/kubernetes/issues/98150", edits: []swap{{"token: of-the-test", ended(t)}}},
		{
			name: "certificate ended, and kubelet stopped", code: "KUB-005", on: d13, like: "https://github.com/kubernetes/kubernetes/issues/98150",
			edits: []swap{{"token: of-the-test", ended(t)}, {kubeletUnit + "\"active\"", kubeletUnit + "\"failed\""}},
		},
		{
			name: "swap", code: "KUB-006", on: d13, like: "https://github.com/Azure/AKSFlexNode/pull/67",
			edits: []swap{{kubeletUnit + "\"active\"", kubeletUnit + "\"failed\""}, {"", "-- proc/swaps --\nFilename\tType\tSize\tUsed\tPriority\n/swapfile  file  3991548  0  -2\n"}},
		},
		{name: "kubelet's configuration edited", code: "KUB-007", on: d13, like: "https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-reconfigure/", after: write("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\"\n")},
		{name: "no-cgroups", code: "RUN-007", on: d13, like: "https://github.com/NVIDIA/nvidia-container-toolkit/issues/580", edits: []swap{{"", "-- usr/bin/nvidia-container-runtime-hook mode=0755 --\n-- usr/bin/nvidia-container-cli mode=0755 --\n-- etc/nvidia-container-runtime/config.toml --\n[nvidia-container-cli]\nno-cgroups = true\n[nvidia-container-runtime]\nmode = \"legacy\"\n"}}},
		{name: "toolkit in the driver container", code: "RUN-008", on: d13, like: "https://github.com/NVIDIA/nvidia-container-toolkit/issues/154", edits: []swap{{"", "-- etc/nvidia-container-runtime/config.toml --\n[nvidia-container-cli]\nroot = \"/run/nvidia/driver\"\n"}}},
		{name: "plugin under runc", code: "RUN-009", on: d13, like: "https://github.com/NVIDIA/k8s-device-plugin/issues/406", after: func(_ *testing.T, n *simhost.Node) {
			n.Daemon("/run/containerd/containerd.sock", func(method string, _ []byte) ([]byte, error) {
				if strings.HasSuffix(method, "ListPodSandbox") { // items (1) with metadata (2) with the name (1): api.proto of k8s.io/cri-api
					const name = "nvidia-device-plugin-daemonset-csjxw"
					return []byte("\x0a" + string(rune(len(name)+4)) + "\x12" + string(rune(len(name)+2)) + "\x0a" + string(rune(len(name))) + name), nil
				}
				return nil, nil
			})
		}},
		{
			name: "policy for CPUs", code: "KUB-012", on: d13, like: "https://github.com/kubernetes-sigs/kubespray/issues/8535",
			edits: []swap{{kubeletUnit + "\"active\"", kubeletUnit + "\"failed\""}, {"cgroupDriver: systemd", "cgroupDriver: systemd\ncpuManagerPolicy: static"}, {"", "-- var/lib/kubelet/cpu_manager_state --\n{\"policyName\":\"none\",\"defaultCpuSet\":\"\",\"checksum\":1353318690}\n"}},
		},
		{name: "no network for pods", code: "KUB-013", on: d13, like: "https://github.com/containerd/containerd/issues/8419", edits: []swap{{"", "-- etc/cni/net.d/.kubernetes-cni-keep --\n"}}},
		{
			name: "CRI switched off, and kubelet ended", code: "RUN-003", on: d13, like: "https://github.com/containerd/containerd/issues/4581",
			edits: []swap{{"imports = [", "disabled_plugins = [\"cri\"]\nimports = ["}, {kubeletUnit + "\"active\"", kubeletUnit + "\"failed\""}},
		},
		{
			name: "spec not written", code: "CDI-001", then: unhealed, on: mig3, like: "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828",
			edits: []swap{{"[[unit]]\n", "[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\n[[unit]]\n"}},
		},
		{
			name: "the refresh has given up", code: "CDI-005", then: unhealed, on: d13, like: "https://github.com/Azure/AgentBaker/pull/9150",
			edits: []swap{{"[[unit]]\n", "[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\nactive = \"failed\"\n[[unit]]\nname = \"nvidia-cdi-refresh.path\"\nenabled = \"enabled\"\nactive = \"failed\"\n[[unit]]\n"}},
		},
		{
			name: "spec of an old driver", code: "CDI-002", on: d13, like: "https://github.com/NVIDIA/NemoClaw/pull/4733",
			edits: []swap{{"", "-- etc/cdi/nvidia.yaml --\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\ncontainerEdits:\n  mounts:\n  - {hostPath: /usr/lib/libcuda.so.570.1.2, containerPath: /x}\n"}},
		},
		{
			name: "the engine looks elsewhere", code: "CDI-004", on: d13,
			like: "https://github.com/moby/moby/issues/47633",
			edits: []swap{
				{"  enable_cdi = true\n", "  enable_cdi = true\n  cdi_spec_dirs = [\"/etc/cdi\"]\n"},
				{"", "-- var/run/cdi/nvidia.yaml --\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"},
			},
		},
		{name: "two writers of a spec", code: "CDI-003", on: d13, like: "https://github.com/NVIDIA/NemoClaw/pull/4733", edits: []swap{{"", cdiSpec}}},
		{name: "no partition", code: "MIG-001", on: mig3, like: "https://github.com/NVIDIA/gpu-operator/issues/132", edits: []swap{{"model = \"H100-80\"\n", "model = \"H100-80\"\nmode = true\npending = true\n"}}},
		{name: "waits for a reset", code: "MIG-002", on: mig3, like: "https://github.com/NVIDIA/mig-parted/issues/9", edits: []swap{{"model = \"A100-40\"\n", "model = \"A100-40\"\npending = true\n"}}},
	}
}

// machine is the recorded one with the fault.
func (b brokenMachine) machine(t *testing.T) machine {
	t.Helper()
	all := archives(t)
	i := slices.IndexFunc(all, func(m machine) bool { return m.name == b.on })
	must.That(t, i >= 0, "no recorded machine %s", b.on)
	text := string(all[i].archive)
	edits := b.edits
	if b.on == "debian13-containerd17" {
		edits = append(working(), edits...)
	}
	for _, e := range edits {
		if e.from == "" {
			text += "\n" + e.to
		} else if !strings.Contains(text, e.from) {
			t.Fatalf("%s has no %q", b.on, e.from)
		}

		if e.from != "" {
			text = strings.ReplaceAll(text, e.from, e.to)
		}
	}

	return machine{b.on, []byte(text)}
}

func (b brokenMachine) boot(t *testing.T) *simhost.Node {
	t.Helper()
	n := b.machine(t).boot(t)
	if b.after != nil {
		b.after(t, n)
	}
	return n
}

// roots are the codes of the root causes.
func roots(n *simhost.Node) (codes []string) {
	for _, c := range doctor.Examine(context.Background(), n, spec.Spec{}, doctor.Own{}).Causes {
		codes = append(codes, c.Code)
	}
	return codes
}

// A machine with one fault has one root cause, the right one. Its repair makes doctor content, and
// undo ends in the first tree.
func TestDoctorNamesTheRootAndRepairFixesIt(t *testing.T) {
	codes := roots(brokenMachine{on: "debian13-containerd17"}.boot(t))
	must.That(t, len(codes) == 0, "the machine without a fault has %v", codes)
	for _, b := range brokenMachines(t) {
		t.Run(b.name, func(t *testing.T) {
			n := b.boot(t)
			if codes := roots(n); !slices.Equal(codes, []string{b.code}) {
				causes := doctor.Examine(t.Context(), n, spec.Spec{}, doctor.Own{}).Causes
				t.Fatalf("root causes %v, want %s: %+v", codes, b.code, causes)
			}
			i := slices.IndexFunc(stages.Repairs(), func(r stages.Repair) bool {
				return r.Code == b.code
			})
			if i < 0 || b.then == unhealed {
				return
			}
			first := lasting(n)
			apply(t, n, repairing(t, stages.Repairs()[i]))
			codes := roots(n)
			check.That(t, strings.Join(codes, " ") == b.then, "after the repair: %v, want %q", codes, b.then)
			undo(t, n, engine(t, ""), "all")
			if !b.stays {
				compare(t, "undone", first, lasting(n))
			}
		})
	}
}

// rejected has an operator write a file that gpuadm can read and containerd cannot: its next start
// ends. The daemon's words are those of a key of another type in `containerd config dump`, which
// exits with 1.
func rejected(t *testing.T, n *simhost.Node) {
	const bad = "pause_threshold = \"many\""
	n.Install("containerd", simhost.Program{Looks: func([]string) bool { return true }, Run: func(f *files.Files, argv []string) ([]byte, error) {
		folder := "/etc/containerd"
		if i := slices.Index(argv, "--config"); i >= 0 { // else it reads the machine's own files
			folder = path.Dir(argv[i+1])
		}
		data, _ := f.ReadFile(folder + "/conf.d/60-logs.toml")
		if strings.Contains(string(data), bad) {
			return nil, &host.CommandError{
				Argv:   argv,
				Code:   1,
				Stderr: "containerd: toml: cannot decode TOML string into struct field of type float64",
			}
		}

		return nil, host.Later{Until: "a real machine"}
	}})
	must.OK(t, n.WriteFile("/etc/containerd/conf.d/60-logs.toml", []byte("version = 2\n[plugins.\"io.containerd.gc.v1.scheduler\"]\n  "+bad+"\n"), host.Attr{Mode: 0o644}))
	must.OK(t, n.Refuse("containerd.service", bad))
}

// Whatever doctor prints on a machine with two faults, typed, leaves all that served before.
func TestPrintedFixesNeverServeLess(t *testing.T) {
	synctest.Test(t, printedFixes) // else it waits two minutes for daemons that start and for an API server that does not answer
}

func printedFixes(t *testing.T) {
	var all, restarting []brokenMachine
	for _, b := range brokenMachines(t) {
		if b.on == "debian13-containerd17" {
			all = append(all, b)
			if b.after != nil {
				restarting = append(restarting, b)
			}
		}
	}

	tested, refused := 0, 0
	for _, one := range restarting {
		for _, other := range all {
			two, ok := one.with(other)
			if !ok {
				continue
			}
			t.Logf("%s, %s", one.name, other.name)
			serves(t, two.boot(t), &tested, &refused)
		}
	}

	for name, pair := range incident.Pairs(t) {
		t.Log(name)
		w := incident.Joined(t, true)
		for _, i := range pair.Of {
			w.Do(i)
		}
		serves(t, w.Node(), &tested, &refused)
	}

	check.That(t, tested >= 100 && refused >= 5, "%d commands were tested, %d refused", tested, refused)
}

// serves types what doctor prints, and wants all units that were active before to be active after
// it.
func serves(t *testing.T, n *simhost.Node, tested, refused *int) {
	t.Helper()
	commands := []string{"gpuadm repair RUN-002", "gpuadm repair KUB-007"} // of an earlier report
	for _, cause := range doctor.Examine(t.Context(), n, spec.Spec{}, doctor.Own{}).Causes {
		commands = append(commands, cause.Commands...)
		if slices.ContainsFunc(stages.Repairs(), func(r stages.Repair) bool { return r.Code == cause.Code }) {
			commands = append(commands, "gpuadm repair "+cause.Code)
		}
	}

	for _, command := range commands {
		before := n.Units()
		err := typed(t, n, command)
		*tested++
		if err != nil {
			*refused++
		}
		for line := range strings.Lines(before) {
			words := strings.Fields(line)
			if len(words) > 2 && words[2] == "active" && !strings.Contains(n.Units(), strings.Join(words[:3], " ")) {
				t.Errorf("%q has ended %s (%v)", command, words[0], err)
			}
		}
	}
}

// with is a machine with both faults; ok is false where they change the same text.
func (b brokenMachine) with(o brokenMachine) (two brokenMachine, ok bool) {
	for _, e := range o.edits {
		if e.from != "" && slices.ContainsFunc(b.edits, func(x swap) bool { return x.from == e.from }) {
			return b, false
		}
	}

	two = b
	two.edits = slices.Concat(b.edits, o.edits)
	two.after = func(t *testing.T, n *simhost.Node) {
		for _, after := range []func(*testing.T, *simhost.Node){b.after, o.after} {
			if after != nil {
				after(t, n)
			}
		}
	}

	return two, b.name != o.name
}

// typed executes the parts of a printed command that the simulated machine knows: gpuadm's own, and
// systemctl's.
func typed(t *testing.T, n *simhost.Node, command string) (err error) {
	for part := range strings.SplitSeq(command, " && ") {
		words := strings.Fields(strings.TrimPrefix(trouble.Commands(part, trouble.Plain), "sudo "))
		switch i := slices.IndexFunc(stages.Repairs(), func(r stages.Repair) bool { return r.Code == words[len(words)-1] }); {
		case i >= 0 && words[1] == "repair":
			_, err = repairing(t, stages.Repairs()[i]).Apply(t.Context(), n)
		case words[0] == "systemctl" && len(words) == 3 && words[1] == "restart":
			err = n.SetUnit(t.Context(), strings.TrimSuffix(words[2], ".service")+".service", host.UnitChange{Job: "restart"})
		}
	}
	return err
}

// lasting is a machine's tree without what settles, which has no state to go back to: that a daemon
// has read its files.
func lasting(n *simhost.Node) string {
	return strings.ReplaceAll(stopped(n), " stale", " fresh")
}

// Each repair is of a fault that doctor names, and doctor names no repair that there is not.
func TestRepairsAreOfChecks(t *testing.T) {
	known := map[string]bool{}
	for _, c := range doctor.Checks() {
		known[c.Code] = true
		code, is := strings.CutPrefix(c.Command, "sudo gpuadm repair ")
		if is && !slices.ContainsFunc(stages.Repairs(), func(r stages.Repair) bool { return r.Code == code }) {
			t.Errorf("%s names the repair %s, which there is not", c.Code, code)
		}
	}

	for _, r := range stages.Repairs() {
		check.That(t, known[r.Code], "no check has the code of the repair %s", r.Code)
	}
}
