// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// vgpuConfig is the PCI configuration space of a virtual GPU: NVIDIA/k8s-device-plugin,
// internal/vgpu, reads the same.
func vgpuConfig(version, branch string) string {
	config := make([]byte, 256)
	config[6], config[0x34] = 0x10, 0x40
	copy(config[0x40:], "\x09\x00\x1b\x56\x46\x00\x16"+version)
	copy(config[0x40+17:], branch)
	return string(config)
}

// TestLabGuest: a guest of NVIDIA vGPU: a data-centre driver and partitions are refused; the
// guest's installer, its licence's daemon with the keys of gridd.conf, and a licence that is
// missing, granted and expired; undo of all of it.
func TestLabGuest(t *testing.T) {
	t.Parallel()
	gpus := fakenvml.Build(t)
	n := gpuNode{node{lab.Boot(t, lab.Options{
		Dist:    "bookworm",
		Headers: true,
		GPUs:    1,
	}), t}}
	n.Put("/lib/modules/"+headersOf(t, n.Host)+"/modules.dep", "", 0o644) // it is installed, not its headers alone
	n.Put("/usr/lib/gpuadm-lab/pci/sys/0000:18:00.0/config", vgpuConfig("580.95.05", "r580_00"), 0o444)
	for from, to := range map[string]string{gpus.Library: "lib/fakenvml/libnvidia-ml.so", gpus.CUDA: "lib/fakenvml/libcuda.so", gpus.Tool: "bin/fakenvml"} {
		n.Put("/usr/local/"+to, string(must.Get(os.ReadFile(from))(t)), 0o755)
	}
	n = n.with(t, "H100-80:1")
	const token = "/etc/nvidia-token/client.tok"
	spec := n.runfileSpec("580.95.05", "grid") + "[driver.grid]\nfeature_type = 4\ntoken_file = \"" + token + "\"\n"
	clean := n.TreeOutsideCaches()
	n.Put(specFile, "format = 1\n[driver]\nversion = \"580\"\n", 0o644)
	says(t, n.gpuadm(1, "plan"), "is for a vGPU guest driver", "with driver 580.95.05, of vGPU 19")

	n.Put(token, "first", 0o600)
	n.Put(specFile, spec, 0o644)
	n.fake("set", "--gpu", "0", "licence=1")
	says(t, n.Exec("gpuadm", "apply", "packages", "modules", "services"), "has no vGPU licence")
	check.Equal(t, n.Get("/etc/nvidia/gridd.conf"), "ClientConfigTokenPath=/etc/nvidia-token\nFeatureType=4\n", "gridd.conf")
	for licence, words := range map[string]string{"licence=1": "has no vGPU licence", "licence=2": "", "licence=3": "has a vGPU licence that has expired"} {
		n.fake("set", "--gpu", "0", licence)
		status := n.Exec("gpuadm", "status")
		check.That(t, strings.Contains(status.Stdout, "GPUs are licensed") == (words != ""), "%s: %s", licence, status)
		check.That(t, slices.Contains(n.roots(), "GPU-012") == (words != ""), "%s: doctor finds %v", licence, n.roots())
		check.That(t, strings.Contains(n.Exec("gpuadm", "doctor").Stdout, words), "%s: doctor does not say %q", licence, words)
	}

	n.fake("set", "--gpu", "0", "licence=2")
	says(t, n.gpuadm(0, "apply", "packages", "modules", "services"), "Nothing to do.")
	daemon := n.MainPID("nvidia-gridd.service")
	n.Put(token, "second", 0o600)
	n.gpuadm(0, "apply", "services")
	check.That(t, daemon != 0 && n.MainPID("nvidia-gridd.service") != daemon, "nvidia-gridd, process %d, has not read another token", daemon)
	n.Put(specFile, spec+layout("\"3g.40gb\" = 2"), 0o644)
	says(t, n.gpuadm(1, "plan"), "cannot partition the GPUs: a hypervisor has cut them out")
	n.gpuadm(0, "undo", "--to", "all")
	n.Must("rm", "-r", "/etc/nvidia-token")
	now := n.TreeOutsideCaches()
	delete(clean, fakeState)
	delete(now, fakeState)
	check.None(t, withoutLogs(ourOwn(now.Diff(clean))), "undo of all left:")
}
