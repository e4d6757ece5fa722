// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// swap is text of a recorded machine, and what it becomes; "" before appends.
type swap struct{ from, to string }

// added appends lines to a recorded machine.
func added(lines ...string) swap { return swap{"", strings.Join(lines, "\n") + "\n"} }

// turned is a unit that is in another state than active.
func turned(unit, state string) swap {
	return swap{unit + `"active"`, unit + `"` + state + `"`}
}

// failed adds a unit that has failed.
func failed(unit string) swap {
	text := fmt.Sprintf("[[unit]]\nname = %q\nenabled = \"enabled\"\nactive = \"failed\"\n", unit)
	return swap{"-- sim.toml --\n", "-- sim.toml --\n" + text}
}

// restarting is a unit that ends again and again.
func restarting(unit string) swap {
	return swap{unit + `"active"`, unit + `"activating"` + "\n" + `sub = "auto-restart"`}
}

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
		{
			"-- etc/kubernetes/kubelet.conf mode=0600 size=1940 --\n",
			"-- etc/kubernetes/kubelet.conf mode=0600 --\n" + kubeconfig("token: of-the-test"),
		},
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
			name: "handler lost", code: "RUN-001", on: d13,
			like: "https://github.com/NVIDIA/gpu-operator/issues/730",
			edits: []swap{
				{"containerd.runtimes.nvidia", "containerd.runtimes.kata"},
				{"\"/usr/bin/nvidia-container-runtime\"", "\"/usr/bin/kata\""},
			},
		},
		{
			name: "edited by hand", code: "RUN-002", on: d13,
			like:  "https://github.com/NVIDIA/gpu-operator/issues/598",
			after: write("/etc/containerd/conf.d/50-mirror.toml", "version = 2\n"),
		},
		{
			name: "a file that the daemon rejects", code: "RUN-003", on: d13,
			like:  "https://github.com/containerd/containerd/issues/12104",
			after: rejected,
		},
		{
			name: "kubelet's configuration is not YAML", code: "KUB-015", on: d13,
			like: "https://github.com/kubernetes/kubeadm/issues/2323",
			after: func(t *testing.T, n *simhost.Node) {
				write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n\tcgroupDriver: systemd\n")(t, n)
				must.OK(t, n.Refuse("kubelet.service", "\n\tcgroupDriver"))
			},
		},
		{
			name: "no TOML", code: "RUN-003", on: d13,
			like:  "https://github.com/NVIDIA/gpu-operator/issues/143",
			edits: []swap{{"imports = [\"/etc", "imports = \"/etc"}},
		},
		{
			name: "no TOML, and stopped", code: "RUN-003", on: d13,
			like: "https://github.com/NVIDIA/gpu-operator/issues/143",
			edits: []swap{
				{"imports = [\"/etc", "imports = \"/etc"},
				turned(containerdUnit, "failed"),
			},
		},
		{
			name: "CRI switched off", code: "RUN-003", on: d13,
			like:  "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1430",
			edits: []swap{{"imports = [", "disabled_plugins = [\"cri\"]\nimports = ["}},
		},
		{
			name: "toolkit removed", code: "RUN-004", on: d13,
			like: "https://github.com/NVIDIA/nvidia-container-runtime/issues/98",
			edits: []swap{
				{"-- usr/bin/nvidia-container-runtime mode=0755 size=3862952 --\n", ""},
				{"default_runtime_name = \"runc\"", "default_runtime_name = \"nvidia\""},
			},
		},
		{
			name: "engine stopped", code: "RUN-005", on: d13,
			like:  "https://github.com/kubernetes/kubernetes/issues/110383",
			edits: []swap{turned(containerdUnit, "inactive")},
		},
		{
			name: "engine and kubelet stopped", code: "RUN-005", then: "KUB-001", on: d13,
			like: "https://github.com/kubernetes/kubernetes/issues/110383",
			edits: []swap{
				turned(containerdUnit, "inactive"),
				turned(kubeletUnit, "failed"),
			},
		},
		{
			name: "engine ends again and again", code: "RUN-010", on: d13,
			like:  "https://github.com/moby/moby/issues/34091",
			edits: []swap{restarting(containerdUnit)},
		},
		{
			name: "cgroup drivers differ", code: "RUN-006", on: d13,
			like:  "https://github.com/containerd/containerd/issues/7276",
			edits: []swap{{"cgroupDriver: systemd", "cgroupDriver: cgroupfs"}},
		},
		{
			name: "persistence daemon stopped", code: "GPU-010", on: d13,
			like:  "https://docs.nvidia.com/deploy/driver-persistence/overview.html",
			edits: []swap{failed("nvidia-persistenced.service")},
		},
		{
			name: "half-configured", code: "PKG-002", stays: true, on: d13,
			like: "https://github.com/Azure/AKS/issues/729",
			edits: []swap{
				{
					"-- sim.toml --\n",
					"-- sim.toml --\n[[command]]\nargv = [\"env\", \"OMP_NUM_THREADS=1\"]\nprefix = true\nwrites = { \"/var/lib/dpkg/status\" = \"Package: dpkg\\nStatus: install ok installed\\nArchitecture: amd64\\nVersion: 1.22.21\\n\" }\n",
				},
				{"Package: kubelet\nStatus: install ok installed", "Package: kubelet\nStatus: install ok half-configured"},
			},
		},
		{
			name: "kubelet stopped", code: "KUB-001", on: d13,
			like:  "https://github.com/kubernetes/kubeadm/issues/1008",
			edits: []swap{turned(kubeletUnit, "inactive")},
		},
		{
			name: "kubelet ends again and again", code: "KUB-014", on: d13,
			like:  "https://github.com/kubernetes/kubernetes/issues/83936",
			edits: []swap{restarting(kubeletUnit)},
		},
		{
			name: "kubelet on another engine", code: "KUB-002", on: d13,
			like:  "https://github.com/kubernetes/kubeadm/issues/915",
			edits: []swap{{"unix:///var/run/containerd/containerd.sock", "unix:///var/run/crio/crio.sock"}},
		},
		{
			name: "two device plugins", code: "KUB-003", on: d13,
			like: "https://github.com/Project-HAMi/HAMi/issues/2076",
			edits: []swap{added(
				"-- proc/711/comm --",
				"nvidia-device-p",
				"-- proc/944/comm --",
				"nvidia-device-p",
			)},
		},
		{
			name: "device plugin killed", code: "KUB-004", on: d13,
			like:  "https://github.com/kubernetes/kubernetes/issues/92396",
			edits: []swap{added("-- var/lib/kubelet/device-plugins/nvidia-gpu.sock --")},
		},
		{
			name: "certificate ended", code: "KUB-005", on: d13,
			like:  "https://github.com/kubernetes/kubernetes/issues/98150",
			edits: []swap{{"token: of-the-test", ended(t)}},
		},
		{
			name: "certificate ended, and kubelet stopped", code: "KUB-005", on: d13,
			like: "https://github.com/kubernetes/kubernetes/issues/98150",
			edits: []swap{
				{"token: of-the-test", ended(t)},
				turned(kubeletUnit, "failed"),
			},
		},
		{
			name: "swap", code: "KUB-006", on: d13,
			like: "https://github.com/Azure/AKSFlexNode/pull/67",
			edits: []swap{
				turned(kubeletUnit, "failed"),
				added(
					"-- proc/swaps --",
					"Filename\tType\tSize\tUsed\tPriority",
					"/swapfile  file  3991548  0  -2",
				),
			},
		},
		{
			name: "kubelet's configuration edited", code: "KUB-007", on: d13,
			like:  "https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-reconfigure/",
			after: write("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\"\n"),
		},
		{
			name: "no-cgroups", code: "RUN-007", on: d13,
			like: "https://github.com/NVIDIA/nvidia-container-toolkit/issues/580",
			edits: []swap{added(
				"-- usr/bin/nvidia-container-runtime-hook mode=0755 --",
				"-- usr/bin/nvidia-container-cli mode=0755 --",
				"-- etc/nvidia-container-runtime/config.toml --",
				"[nvidia-container-cli]",
				"no-cgroups = true",
				"[nvidia-container-runtime]",
				`mode = "legacy"`,
			)},
		},
		{
			name: "toolkit in the driver container", code: "RUN-008", on: d13,
			like: "https://github.com/NVIDIA/nvidia-container-toolkit/issues/154",
			edits: []swap{added(
				"-- etc/nvidia-container-runtime/config.toml --",
				"[nvidia-container-cli]",
				`root = "/run/nvidia/driver"`,
			)},
		},
		{
			name: "plugin under runc", code: "RUN-009", on: d13,
			like:  "https://github.com/NVIDIA/k8s-device-plugin/issues/406",
			after: func(_ *testing.T, n *simhost.Node) { listsPod(n, "nvidia-device-plugin-daemonset-csjxw") },
		},
		{
			name: "policy for CPUs", code: "KUB-012", on: d13,
			like: "https://github.com/kubernetes-sigs/kubespray/issues/8535",
			edits: []swap{
				turned(kubeletUnit, "failed"),
				{"cgroupDriver: systemd", "cgroupDriver: systemd\ncpuManagerPolicy: static"},
				added(
					"-- var/lib/kubelet/cpu_manager_state --",
					`{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`,
				),
			},
		},
		{
			name: "no network for pods", code: "KUB-013", on: d13,
			like:  "https://github.com/containerd/containerd/issues/8419",
			edits: []swap{added("-- etc/cni/net.d/.kubernetes-cni-keep --")},
		},
		{
			name: "CRI switched off, and kubelet ended", code: "RUN-003", on: d13,
			like: "https://github.com/containerd/containerd/issues/4581",
			edits: []swap{
				{"imports = [", "disabled_plugins = [\"cri\"]\nimports = ["},
				turned(kubeletUnit, "failed"),
			},
		},
		{
			name: "spec not written", code: "CDI-001", then: unhealed, on: mig3,
			like:  "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828",
			edits: []swap{{"[[unit]]\n", "[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\n[[unit]]\n"}},
		},
		{
			name: "the refresh has given up", code: "CDI-005", then: unhealed, on: d13,
			like: "https://github.com/Azure/AgentBaker/pull/9150",
			edits: []swap{
				failed("nvidia-cdi-refresh.service"),
				failed("nvidia-cdi-refresh.path"),
			},
		},
		{
			name: "spec of an old driver", code: "CDI-002", on: d13,
			like: "https://github.com/NVIDIA/NemoClaw/pull/4733",
			edits: []swap{added(
				"-- etc/cdi/nvidia.yaml --",
				"cdiVersion: 0.5.0",
				"kind: nvidia.com/gpu",
				"devices: []",
				"containerEdits:",
				"  mounts:",
				"  - {hostPath: /usr/lib/libcuda.so.570.1.2, containerPath: /x}",
			)},
		},
		{
			name: "the engine looks elsewhere", code: "CDI-004", on: d13,
			like: "https://github.com/moby/moby/issues/47633",
			edits: []swap{
				{"  enable_cdi = true\n", "  enable_cdi = true\n  cdi_spec_dirs = [\"/etc/cdi\"]\n"},
				added(
					"-- var/run/cdi/nvidia.yaml --",
					"cdiVersion: 0.5.0",
					"kind: nvidia.com/gpu",
					"devices: []",
				),
			},
		},
		{
			name: "two writers of a spec", code: "CDI-003", on: d13,
			like:  "https://github.com/NVIDIA/NemoClaw/pull/4733",
			edits: []swap{{"", cdiSpec}},
		},
		{
			name: "no partition", code: "MIG-001", on: mig3,
			like:  "https://github.com/NVIDIA/gpu-operator/issues/132",
			edits: []swap{{"model = \"H100-80\"\n", "model = \"H100-80\"\nmode = true\npending = true\n"}},
		},
		{
			name: "waits for a reset", code: "MIG-002", on: mig3,
			like:  "https://github.com/NVIDIA/mig-parted/issues/9",
			edits: []swap{{"model = \"A100-40\"\n", "model = \"A100-40\"\npending = true\n"}},
		},
	}
}

// listsPod has the engine list one pod. api.proto of k8s.io/cri-api: items (1) with metadata (2) with the
// name (1).
func listsPod(n *simhost.Node, name string) {
	field := func(number byte, data string) string {
		return string([]byte{number<<3 | 2, byte(len(data))}) + data
	}
	list := field(1, field(2, field(1, name)))
	n.Daemon("/run/containerd/containerd.sock", func(method string, _ []byte) ([]byte, error) {
		if strings.HasSuffix(method, "ListPodSandbox") {
			return []byte(list), nil
		}
		return nil, nil
	})
}
