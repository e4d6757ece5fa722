// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// ownersOf says who owns each part of a machine, and who else tries to: "driver=a!b toolkit=- …".
func ownersOf(t *testing.T, n *simhost.Node, text string) string {
	t.Helper()
	s := parse(t, text)
	f := must.Get(facts.Gather(t.Context(), n, stages.OwnersNeeds(s)))(t)
	parts := must.Get(stages.Owners(t.Context(), n, s, f))(t)
	var words []string
	for _, p := range parts {
		if (p.Owner == nil) == (p.None == "") || p.Owner == nil && len(p.Others) > 0 {
			t.Errorf("%s has not exactly one of owner and reason: %+v", p.Name, p)
		}
		who := "-"
		if p.Owner != nil {
			who = p.Owner.Who
			if p.Owner.By == "" {
				t.Errorf("%s: no evidence", p.Name)
			}
		}
		for _, o := range p.Others {
			who += "!" + o.Who
			if len(o.Ends) == 0 || o.By == "" {
				t.Errorf("%s: nothing ends the claim of %s", p.Name, o.Who)
			}
		}
		words = append(words, p.Name+"="+who)
	}
	return strings.Join(words, "; ")
}

const plugins = "/var/lib/kubelet/device-plugins/"

// TestOwnersOfParts: each part of each recorded machine has one owner or says why it has none.
func TestOwnersOfParts(t *testing.T) {
	table := ownersOfParts()
	for _, m := range archives(t) {
		t.Run(m.name, func(t *testing.T) {
			n := m.boot(t)
			names, _ := n.ReadDir(plugins) // recorded, they answer
			for _, name := range names {
				n.Daemon(plugins+name, func(string, []byte) ([]byte, error) { return nil, nil })
			}
			if got := ownersOf(t, n, shippedSpec(t)); got != table[m.name] {
				t.Errorf("\n%q: %q,\nwant\n%q", m.name, got, table[m.name])
			}
		})
	}
}

// TestOwnersQuarrels: machines on which others leave their signs. The GPU Operator's are those of its driver container
// (nvidia-driver in NVIDIA/gpu-driver-container), of its toolkit (NVIDIA/gpu-operator issues 2387) and of nvidia-mig-manager
// (NVIDIA/mig-parted, deployments); that of a GPUCluster is the DRA driver's registration (kubernetes-sigs/dra-driver-nvidia-gpu,
// cmd/gpu-kubelet-plugin/main.go).
func TestOwnersQuarrels(t *testing.T) {
	dropIn := "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n" +
		"options = {BinaryName = \"" + facts.RuntimeOfOperator + "\"}\n"
	policy := map[string]string{
		"/run/nvidia/nvidia-driver.pid":                                   "1\n",
		"/var/log/containers/nvidia-mig-manager-x7_gpu-operator_m-0f.log": "x\n",
		facts.RuntimeOfOperator:                                           "",
		"/srv/containerd/d/99-nvidia.toml":                                dropIn,
	}
	gpuCluster := map[string]string{"/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock": "x\n"}
	const all = "[driver]\nversion = \"580\"\n[toolkit]\nversion = \"1.18.0\"\n[runtime]\n[mig]\n[[mig.gpu]]\nlayout = {\"1g.5gb\" = 1}\n"
	for _, c := range []struct {
		name, machine string
		files         map[string]string
		spec, want    string
	}{
		{"a ClusterPolicy alone", "a100-mixed-t4", policy, "[runtime]\n", "driver=NVIDIA's GPU Operator; toolkit=NVIDIA's GPU Operator; CDI=-; handler=NVIDIA's GPU Operator; MIG=nvidia-mig-manager" + noMore},
		{"a ClusterPolicy, and node.toml asks for the same", "a100-mixed-t4", policy, all, "driver=NVIDIA's GPU Operator; toolkit=gpuadm!NVIDIA's GPU Operator; CDI=-; handler=gpuadm!NVIDIA's GPU Operator; MIG=nvidia-mig-manager!gpuadm" + noMore},
		{"a ClusterPolicy, and node.toml takes the driver", "a100-mixed-t4", policy, "[driver]\nversion = \"580\"\nowner = \"gpuadm\"\n", "driver=NVIDIA's GPU Operator!gpuadm; toolkit=NVIDIA's GPU Operator; CDI=-; handler=NVIDIA's GPU Operator; MIG=nvidia-mig-manager" + noMore},
		{"a GPUCluster", "a100-mixed-t4", gpuCluster, "[driver]\nversion = \"580\"\n[runtime]\ninject = \"cdi\"\n", "driver=gpuadm; toolkit=-; CDI=-; handler=-; MIG=-; IMEX=-; device plugin or DRA=NVIDIA's DRA driver"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ownersOf(t, changed(t, c.machine, c.files), c.spec); got != c.want {
				t.Errorf("%q\nwant\n%q", got, c.want)
			}
		})
	}
}

// noMore is the end of most: no partitions are asked for, no rack, and nothing has registered with kubelet.
const noMore = "; IMEX=-; device plugin or DRA=-"

func ownersOfParts() map[string]string {
	return map[string]string{
		"a100-mixed-t4":         "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"aks-ubuntu2204":        "driver=-; toolkit=-; CDI=-; handler=aks; MIG=-" + noMore,
		"al2023-eks-nvidia":     "driver=the EKS image; toolkit=the EKS image; CDI=-; handler=nodeadm; MIG=-" + noMore,
		"al2023-eks-trees":      "driver=the EKS image; toolkit=the EKS image; CDI=-; handler=nodeadm; MIG=-" + noMore,
		"arm64-gh200":           "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"bake-root":             "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"bare-folder":           "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"debian12-containerd16": "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"debian13-containerd17": "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"debian13-docker":       "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"demo":                  "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"docker-only":           "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"eks-bottlerocket":      "driver=the Bottlerocket variant's image; toolkit=the Bottlerocket variant's image; CDI=-; handler=bottlerocket; MIG=-" + noMore,
		"gke-cos":               "driver=Google's cos-gpu-installer, or GKE's driver installer; toolkit=-; CDI=-; handler=-; MIG=-; IMEX=-; device plugin or DRA=the device plugin",
		"gke-ubuntu":            "driver=-; toolkit=-; CDI=-; handler=-; MIG=-" + noMore,
		"k3s":                   "driver=-; toolkit=-; CDI=-; handler=k3s; MIG=-" + noMore,
		"mig-h100-a100-t4":      "driver=-; toolkit=-; CDI=-; handler=-; MIG=-" + noMore,
		"no-gpu":                "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"operator-26.3":         "driver=NVIDIA's GPU Operator; toolkit=NVIDIA's GPU Operator; CDI=-; handler=NVIDIA's GPU Operator; MIG=nvidia-mig-manager; IMEX=-; device plugin or DRA=the device plugin",
		"operator-26.7":         "driver=NVIDIA's GPU Operator; toolkit=-; CDI=-; handler=gpuadm; MIG=-; IMEX=-; device plugin or DRA=NVIDIA's DRA driver",
		"rke2":                  "driver=-; toolkit=-; CDI=-; handler=rke2; MIG=-" + noMore,
		"rocky9-crio":           "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"rocky9-crio125":        "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
		"talos":                 "driver=the Talos image's NVIDIA system extension; toolkit=the Talos image's NVIDIA system extension; CDI=the Talos image's NVIDIA system extension; handler=talos; MIG=-" + noMore,
		"ubuntu24-h100":         "driver=-; toolkit=-; CDI=-; handler=gpuadm; MIG=-" + noMore,
	}
}
