// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// copyOf keeps a folder of configuration, and compares with what was kept.
const copyOf = "/root/containerd.kept"

func (n node) keep() {
	n.t.Helper()
	n.Must("sh", "-c", "rm -rf "+copyOf+" && cp -a /etc/containerd "+copyOf)
}

func (n node) unchanged(after string) {
	n.t.Helper()
	r := n.Exec("diff", "-r", copyOf, "/etc/containerd")
	check.That(n.t, r.Exit == 0, "%s has changed containerd's files: %s", after, r.Stdout)
}

// TestLabRepairOfOthers: repair edits no file of the GPU Operator, whose toolkit writes a drop-in with
// nvidia-ctk 1.20.1, whole or by hand, and takes CRI from no engine: registry.config_path beside mirrors
// passes `config dump` and has the CRI plugin of containerd 1.7 not load.
// Source of the latter: https://github.com/containerd/containerd, docs/cri/registry.md.
func TestLabRepairOfOthers(t *testing.T) {
	t.Parallel()
	n := bootCDI(t, nil)
	n.joined()
	const program = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
	const dropIn = "/etc/containerd/conf.d/99-nvidia.toml"
	n.Must("sh", "-c", "mkdir -p /usr/local/nvidia/toolkit /etc/containerd/conf.d && cp /usr/bin/nvidia-container-runtime "+program)
	n.Must("cp", "-a", "/etc/containerd", "/root/containerd.good")

	n.Must("sh", "-c", "nvidia-ctk runtime configure --runtime=containerd --config=/etc/containerd/config.toml "+
		"--drop-in-config="+dropIn+" --nvidia-runtime-path="+program+" --set-as-default && systemctl restart containerd")
	n.working()
	n.Must("cp", "-a", "/etc/containerd", "/root/containerd.operator")
	n.keep()
	for _, code := range []string{"RUN-001 --dry-run", "RUN-001 -y", "RUN-001 -y --allow all"} {
		r := n.Exec("sh", "-c", "gpuadm repair "+code)
		check.That(t, r.Exit != 0, "repair %s: %v", code, r)
		n.unchanged("repair " + code)
	}

	n.Must("sh", "-c", "echo '# by hand' >>"+dropIn)
	n.keep()
	check.That(t, strings.Contains(strings.Join(n.roots(), " "), "RUN-002"), "%v", n.roots())
	r := n.Exec("gpuadm", "repair", "RUN-002", "-y")
	check.That(t, r.Exit == 0, "repair RUN-002: %v", r)
	n.unchanged("repair RUN-002")
	n.working()

	n.Must("sh", "-c", "rm -rf /etc/containerd && cp -a /root/containerd.operator /etc/containerd")
	n.Put(dropIn, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n"+
		"  runtime_type = \"io.containerd.runc.v2\"\n"+
		"  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n"+
		"    BinaryName = \""+program+"\"\n", 0o644)
	n.Must("systemctl", "restart", "containerd")
	n.working()
	n.keep()
	r = n.Exec("gpuadm", "repair", "RUN-001", "-y")
	check.That(t, r.Exit != 0, "repair RUN-001: %v", r)
	n.unchanged("repair RUN-001 beside a drop-in made by hand")

	n.Must("sh", "-c", "rm -rf /etc/containerd && cp -a /root/containerd.good /etc/containerd && systemctl restart containerd")
	n.working()
	n.Must("sh", "-c", `printf '[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n`+
		`[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]\n  endpoint = ["https://mirror.example"]\n' >>`+config)
	n.keep()
	r = n.Exec("gpuadm", "repair", "RUN-002", "-y")
	check.That(t, r.Exit != 0, "repair RUN-002 with mirrors: %v", r)
	n.unchanged("repair RUN-002 with mirrors")
	plugins := n.Must("sh", "-c", "ctr plugins ls | grep -w cri")
	check.That(t, !strings.Contains(plugins, "error"), "CRI is gone after the repair (%v): %s", r, plugins)
	codes := strings.Join(n.roots(), " ")
	check.That(t, strings.Contains(codes, "RUN-003"), "doctor at once: %v", codes)
}
