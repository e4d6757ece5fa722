// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// engine is a containerd on a host that has two.
type engine struct{ unit, binary, config, socket string }

func system() engine {
	return engine{daemon, "/usr/bin/containerd", config, "/run/containerd/containerd.sock"}
}

// k3s renders its containerd's file at each start.
func k3s() engine {
	return engine{"k3s.service", "/var/lib/rancher/k3s/data/current/bin/containerd", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"}
}

// unknownEngine is a containerd that an administrator has set up beside the system's: gpuadm knows
// no such unit.
func unknownEngine() engine {
	return engine{"sandboxes.service", "/opt/sandboxes/containerd", "/etc/sandboxes/config.toml", "/run/sandboxes/containerd.sock"}
}

// install puts an engine on the host beside its own, and runs it.
func (n node) install(e engine) {
	n.t.Helper()
	n.Must("install", "-D", "/usr/bin/containerd", e.binary)
	n.Put(e.config, fmt.Sprintf("version = 2\nroot = \"/var/lib/containerd/%[1]s\"\nstate = \"/run/%[1]s-state\"\n[grpc]\n  address = %[2]q\n", e.unit, e.socket), 0o644)
	n.Put("/etc/systemd/system/"+e.unit, fmt.Sprintf("[Unit]\nDescription=a containerd beside the system's\n[Service]\nExecStart=%s --config %s\nDelegate=yes\nKillMode=process\n[Install]\nWantedBy=multi-user.target\n", e.binary, e.config), 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", e.unit)
	n.serves(e)
}

// serves wants an engine to answer.
func (n node) serves(e engine) {
	n.t.Helper()
	var r lab.Result
	if !eventually(func() bool { r = n.Exec("ctr", "--address", e.socket, "version"); return r.Exit == 0 }) {
		n.t.Errorf("%s does not answer: %s%s", e.unit, r, n.Journal(e.unit))
	}
}

// kubeletOf is a fake kubelet that is configured to use an engine.
func (n node) kubeletOf(e engine) {
	n.t.Helper()
	n.Put("/usr/bin/kubelet", kubeletProgram, 0o755)
	n.Put("/etc/systemd/system/kubelet.service", strings.Replace(kubelet, "/bin/sleep infinity", "/usr/bin/kubelet --container-runtime-endpoint=unix://"+e.socket, 1), 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", "kubelet.service")
}

// two is a host with two containerds.
type two struct {
	name  string
	other engine
	// kubelet talks to this one; none if it is empty.
	kubelet engine
	spec    string
	// edits is the one that apply edits and restarts; none if it is empty, and says is why.
	edits engine
	says  []string
}

// TestLabTwoContainerds: of two containerds the one that kubelet talks to is edited, without a
// kubelet the system's. The other one's file is not touched and its process goes on; where the
// right one is not gpuadm's to edit, or is not known, neither is touched, and it says which engine
// it is.
func TestLabTwoContainerds(t *testing.T) {
	t.Parallel()
	for _, c := range twos() {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			either(t, func(t *testing.T, o lab.Options) { c.test(boot(t, o)) })
		})
	}
}

func twos() []two {
	return []two{
		{name: "no kubelet and an unknown one", other: unknownEngine(), edits: system()},
		{name: "kubelet of the system beside an unknown one", other: unknownEngine(), kubelet: system(), edits: system()},
		{name: "kubelet of an unknown one", other: unknownEngine(), kubelet: unknownEngine(), edits: unknownEngine()},
		{name: "kubelet of an unknown one and the spec names the engine", other: unknownEngine(), kubelet: unknownEngine(), spec: "engine = \"containerd\"\n", edits: unknownEngine()},
		{
			name: "k3s with its own kubelet", other: k3s(),
			says: []string{"cannot make nvidia the default runtime: k3s generates " + k3s().config, "default-runtime: nvidia", "nothing was touched"},
		},
		{name: "kubelet of the system beside k3s", other: k3s(), kubelet: system(), edits: system()},
	}
}

func (c two) test(n node) {
	n.t.Helper()
	n.install(c.other)
	if c.kubelet.unit != "" {
		n.kubeletOf(c.kubelet)
	}
	n.Put(specFile, specText+c.spec, 0o644)
	both := []engine{system(), c.other}
	files, pids := map[string]string{}, map[string]int{}
	for _, e := range both {
		files[e.unit], pids[e.unit] = n.Get(e.config), n.MainPID(e.unit)
	}
	exit := 1
	if c.edits.unit != "" {
		exit = 0
	}
	before := n.files()
	r := n.gpuadm(exit, "apply")
	n.t.Logf("apply: %s", r)
	check.Says(n.t, r.Stderr, c.says...)
	for _, e := range both {
		n.serves(e)
		edited, restarted := n.Get(e.config) != files[e.unit], n.MainPID(e.unit) != pids[e.unit]
		want := e == c.edits
		check.That(n.t, edited == want && restarted == want, "%s: edited %v, restarted %v, want %v", e.unit, edited, restarted, want)
	}

	if exit != 0 {
		check.None(n.t, before.Touched(n.files()), "touched:")
		return
	}
	dump := n.Must(c.edits.binary, "--config", c.edits.config, "config", "dump")
	check.That(n.t, strings.Contains(dump, `BinaryName = "/usr/bin/nvidia-container-runtime"`) || strings.Contains(dump, `BinaryName = '/usr/bin/nvidia-container-runtime'`),
		"%s has no handler:\n%s", c.edits.unit, dump)
	n.gpuadm(0, "status")
	r = n.gpuadm(0, "apply")
	check.That(n.t, r.Stdout == "Nothing to do.\n", "apply again: %s", r)
	n.gpuadm(0, "undo", "--yes")
	check.None(n.t, before.Diff(n.files()), "undo did not undo:")
	for _, e := range both {
		n.serves(e)
		now := n.MainPID(e.unit)
		check.That(n.t, e == c.edits || now == pids[e.unit], "%s: process %d, was %d", e.unit, now, pids[e.unit])
	}
}
