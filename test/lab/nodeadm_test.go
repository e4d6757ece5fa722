// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// nodeadmScript does of nodeadm what its units see: the config phase answers the first time in a
// boot only, and the run phase starts kubelet. It counts both. What it keeps has the fields that
// nodeadm always writes: nodeadm/internal/api/types.go of awslabs/amazon-eks-ami.
const nodeadmScript = `#!/bin/sh
echo "$3" >>/run/nodeadm-calls
if [ "$3" = run ]; then # --skip run
	[ "$(grep -c '^run$' /run/nodeadm-calls)" = 1 ] || { echo 'no metadata service' >&2; exit 1; }
	mkdir -p /run/eks/nodeadm; echo '{"spec":{"cluster":{},"containerd":{},"instance":{},"kubelet":{}},"status":{}}' >/run/eks/nodeadm/config.json
	exit 0
fi
exec systemctl restart kubelet.service
`

// TestLabNodeadmWaits: nodeadm-run waits while the gate is closed: 25 seconds here, and systemd sets
// no limit. It starts nodeadm-config once only, so that a failure of that meanwhile does not matter;
// and it starts kubelet by itself once an apply opens the gate.
func TestLabNodeadmWaits(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t).with(t, "H100-80:8")
	n.cuda()
	n.Put("/usr/bin/nodeadm", nodeadmScript, 0o755)
	n.Put("/usr/bin/kubelet", kubeletProgram, 0o755)
	n.Put("/etc/eks/kubelet/environment", "NODEADM_KUBELET_ARGS=\n", 0o644)
	for name, text := range lab.NodeadmUnits() {
		n.Put("/etc/systemd/system/"+name, text, 0o644)
	}
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "nodeadm-config.service", "nodeadm-run.service")
	const gpus = "format = 1\n[driver]\ngpu_count = 8\n[node]\nlabels = { \"example.com/pool\" = \"h100\" }\n[join]\nmethod = \"eks\"\n"
	n.Put(specFile, gpus, 0o644)
	// No cluster is here: the stages that wait for its answer are left out.
	apply := []string{"apply", "--skip", "joined,ready"}
	r := n.gpuadm(0, append(apply, "--install")...)
	must.That(t, strings.Contains(r.Stderr, "nodeadm-run.service.d/50-gpuadm.conf"), "nodeadm-run does not wait: %s", r)
	n.Put(specFile, strings.Replace(gpus, "= 8", "= 9", 1), 0o644)

	n.Options.Waits = "nodeadm-run.service"
	n.Reboot()
	n.active(bootUnit, "failed")
	calls := func() string {
		return strings.Join(strings.Fields(n.Get("/run/nodeadm-calls")), " ")
	}
	if !eventually(func() bool { return strings.Contains(n.Journal("nodeadm-run.service"), "cannot let kubelet start") }) {
		t.Fatalf("nodeadm-run did not ask the gate: %s", n.Journal("nodeadm-run.service"))
	}
	timeout := n.Property("nodeadm-run.service", "TimeoutStartUSec")
	check.That(t, timeout == "infinity", "systemd ends nodeadm-run after %s, and the gate may be closed for longer", timeout)
	time.Sleep(25 * time.Second) // a unit that systemd restarts each 10 s, as an earlier drop-in did, has called nodeadm-config again by then
	if is := n.Property("nodeadm-run.service", "ActiveState"); is != "activating" || calls() != "run" {
		t.Errorf("nodeadm-run is %s, and nodeadm was called for all but: %s\n%s", is, calls(), n.Journal("nodeadm-run.service"))
	}
	r = n.Exec("systemctl", "start", "nodeadm-config.service")
	check.That(t, r.Exit != 0, "nodeadm-config has not failed: %s", r)
	check.That(t, n.MainPID("kubelet.service") == 0, "kubelet runs, and the gate is closed")

	n.Put(specFile, gpus, 0o644)
	n.gpuadm(0, apply...)
	n.active("kubelet.service", "active")
	if calls() != "run run config" {
		t.Errorf("nodeadm was called for all but: %s\n%s", calls(), n.Journal("nodeadm-run.service"))
	}
	lines := strings.Count(n.Journal("nodeadm-run.service"), "cannot let kubelet start")
	check.That(t, lines <= 3, "the gate has logged its reason %d times", lines)
}

// cuda has CUDA start on the host's fake GPUs, at each boot.
func (n gpuNode) cuda() {
	n.t.Helper()
	library := must.Get(os.ReadFile(fakenvml.Build(n.t).CUDA))(n.t)
	n.Put("/usr/lib/x86_64-linux-gnu/"+fakenvml.CUDASoname, string(library), 0o755)
	n.Put("/etc/systemd/system/fake-gpus.service.d/cuda.conf", "[Service]\nExecStart=/bin/ln -sf null /dev/nvidia-uvm\n", 0o644)
	n.Must("ln", "-sf", "null", "/dev/nvidia-uvm")
	n.Must("systemctl", "daemon-reload")
}
