// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	specFile = "/etc/gpuadm/node.toml"
	specText = "format = 1\n[driver]\ngpu_count = 8\n[runtime]\nset_as_default = true\n"
	daemon   = "containerd.service"
	config   = "/etc/containerd/config.toml"
	state    = "/var/lib/gpuadm"

	// withoutCDI is for hosts whose nvidia-ctk is a stand-in: TestLabCDI has the real one.
	withoutCDI = "[runtime]\nset_as_default = true\ncdi = false\n"
)

// node is a host with a spec, and what gpuadm's tests ask it.
type node struct {
	*lab.Host
	t *testing.T
}

func boot(t *testing.T, o lab.Options) node {
	t.Helper()
	n := node{lab.Boot(t, o), t}
	n.Put(specFile, specText, 0o644)
	n.answers()
	return n
}

// everything is what gpuadm could touch, without what it keeps for itself.
func (n node) everything() lab.Tree {
	n.t.Helper()
	return n.Tree([]string{"/etc", "/usr", "/var"}, state)
}

// files are the folders that this spec may change something in; quicker than everything.
func (n node) files() lab.Tree {
	n.t.Helper()
	const rancher = "/var/lib/rancher/"
	engines := []string{
		rancher + "k3s/agent/containerd", rancher + "rke2/agent/containerd", "/var/lib/containers",
	}
	return n.Tree([]string{"/etc", "/var/lib"}, append(engines, state)...) // what an engine keeps is its own
}

// gpuadm runs it and wants an exit code.
func (n node) gpuadm(exit int, args ...string) lab.Result {
	n.t.Helper()
	r := rebooted(n.Exec(append([]string{"gpuadm"}, args...)...))
	check.That(n.t, r.Exit == exit, "gpuadm %s, want exit %d: %s", strings.Join(args, " "), exit, r)
	return r
}

// rebooted is a result without the reboot that each apply of a driver asks for on the lab's hosts:
// the kernel that runs has no folder there, so that no driver can be loaded.
func rebooted(r lab.Result) lab.Result {
	const why, alone = "runs and is not installed, so that no driver can be loaded", "Nothing to do now; check a kernel with the driver runs is deferred until "
	before, _, asks := strings.Cut(r.Stdout, "A reboot is needed: kernel ")
	if r.Exit == 4 && asks && strings.Contains(strings.Join(strings.Fields(r.Stdout), " "), why) {
		if r.Exit, r.Stdout = 0, before; strings.HasPrefix(r.Stdout, alone) && strings.Count(r.Stdout, " deferred until ") == 1 {
			r.Stdout = "Nothing to do.\n"
		}
	}

	return r
}

// answers wants containerd to answer; right after a start it needs a moment.
func (n node) answers() bool {
	n.t.Helper()
	var r lab.Result
	if eventually(func() bool { r = n.Exec("ctr", "version"); return r.Exit == 0 }) {
		return true
	}
	n.t.Errorf("containerd does not answer: %s%s", r, n.Journal(daemon))
	return false
}

// working wants a daemon that answers, and that has started after the last change of its files,
// asked without gpuadm. Their folder may be younger: the next run sweeps what a power cut left in
// it.
func (n node) working() {
	n.t.Helper()
	if !n.answers() {
		return
	}
	words := strings.Fields(n.Must("busctl", "get-property", "org.freedesktop.systemd1",
		"/org/freedesktop/systemd1/unit/containerd_2eservice", "org.freedesktop.systemd1.Service", "ExecMainStartTimestamp"))
	started, err := strconv.ParseFloat(words[len(words)-1], 64) // "t 1795246730123456", in microseconds
	must.That(n.t, err == nil, "cannot read when containerd started: %v", err)
	for _, name := range strings.Fields(n.Must("find", "/etc/containerd", "-type", "f")) {
		changed, err := strconv.ParseFloat(strings.TrimSpace(n.Must("stat", "-c", "%.9Z", name)), 64)
		must.That(n.t, err == nil, "cannot read when %s changed: %v", name, err)
		if changed*1e6 > started {
			n.t.Errorf("containerd started %.3f s before %s changed", changed-started/1e6, name)
		}
	}
}

// effect is what the machine's own containerd says it makes of its configuration.
func (n node) effect() parts.Effect {
	n.t.Helper()
	var dump map[string]any
	err := toml.Unmarshal([]byte(n.Must("containerd", "config", "dump")), &dump)
	must.That(n.t, err == nil, "cannot read containerd's dump: %v", err)
	return parts.EffectOf(dump)
}

// configured wants the handler and the default that the spec names.
func (n node) configured() {
	n.t.Helper()
	e := n.effect()
	options, _ := e.Runtimes["nvidia"]["options"].(map[string]any)
	check.That(n.t, e.DefaultRuntime == "nvidia" && options["BinaryName"] == "/usr/bin/nvidia-container-runtime",
		"containerd's default runtime is %q, and nvidia is %v", e.DefaultRuntime, e.Runtimes["nvidia"])
}

// starts counts containerd's starts since boot.
func (n node) starts() int {
	n.t.Helper()
	return strings.Count(n.Journal(daemon), "Started "+daemon)
}

// leftovers lists the files of gpuadm beside its state, its lock and what it remembers until the
// next boot.
func (n node) leftovers() []string {
	n.t.Helper()
	return n.leftoversIn("")
}

// leftoversIn are those in an image's root folder.
func (n node) leftoversIn(root string) []string {
	n.t.Helper()
	return strings.Fields(n.Must("find",
		root+"/etc", root+"/usr", root+"/var", root+"/run", root+"/tmp", "-xdev", "-name", "*gpuadm*",
		"!", "-path", root+"/etc/gpuadm", "!", "-path", root+state,
		"!", "-path", "/run/gpuadm.lock", "!", "-path", "/run/gpuadm-modules.json",
		"!", "-path", "/usr/local/sbin/gpuadm", "!", "-path", "*gpuadm-lab*", "!", "-path", "/run/systemd/units/*", "-prune"))
}

// TestLabWholeNode is the main job, in one apply on a machine that has a container engine and
// nothing of NVIDIA's: driver and toolkit installed from repositories, modules built and proven for
// the kernel, daemons, partitions by the driver just installed, and the engine. Then a second
// apply, a reboot, and all of it undone.
func TestLabWholeNode(t *testing.T) {
	t.Parallel()
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	n := gpuNode{node{lab.Boot(t, lab.Options{
		Dist:    "bookworm",
		GPUs:    8,
		Repos:   deb,
		Headers: true,
	}), t}}
	n.answers()
	repos.Show(n.Host, repos.Good)
	n.Must("rm", "-f", "/usr/bin/nvidia-container-runtime") // the lab's own
	for from, to := range map[string]string{gpus.Tool: "/usr/local/bin/fakenvml", gpus.NvidiaSMI: "/usr/local/bin/nvidia-smi"} {
		data := must.Get(os.ReadFile(from))(t)
		n.Put(to, string(data), 0o755)
	}

	kernel := strings.TrimSpace(n.Must("ls", "/lib/modules"))
	n.Put("/lib/modules/"+kernel+"/modules.dep", "", 0o644) // as if the kernel were installed, too: its headers are
	n.Must("depmod", kernel)
	n = n.with(t, "H100-80:8")
	d := driverNode{n.node, repos.Fingerprint(t, deb)}
	n.Put(specFile, d.spec("580.65.06", "1.18.0")+"[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.40gb\" = 2 }\n"+withoutCDI, 0o644)
	packages, files := n.AptState(), n.TreeOutsideCaches()

	t.Log(n.gpuadm(0, "plan", "-v").Stdout)
	t.Log(n.gpuadm(0, "apply", "--install").Stderr)
	g := geometry(n.dump().GPUs[0])
	check.That(t, strings.Count(g, "3g.40gb@") == 2, "partitioned by the driver just installed: %s", g)
	d.has("580.65.06")
	for _, unit := range []string{"nvidia-persistenced.service", daemon} {
		check.That(t, n.MainPID(unit) != 0, "%s does not run", unit)
	}
	pid := n.MainPID(daemon)
	says(t, n.gpuadm(0, "apply", "--install"), "Nothing to do.")
	says(t, n.gpuadm(0, "status"), "converged since")
	check.That(t, n.MainPID(daemon) == pid, "a second apply has restarted %s", daemon)

	n.Must("ln", "-sf", fakeState, "/run/fakenvml.state")
	n.gpuadm(0, "undo", "--to", "all")
	check.That(t, maps.Equal(n.AptState(), packages), "undo of all left other packages")
	check.Equal(t, geometry(n.dump().GPUs[0]), "mode 0 ", "undo of all left partitions:")
	delete(files, fakeState)
	now := n.TreeOutsideCaches()
	delete(now, fakeState)
	check.None(t, ourOwn(now.Diff(files)), "undo of all left:")
}
