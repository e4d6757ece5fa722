// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabApplyTwiceUndo: plan and status touch nothing; apply converges with one restart, under
// which a container keeps running; a second apply does nothing; undo restores bytes, mode, owner and
// a daemon that runs with them; status is right all along.
func TestLabApplyTwiceUndo(t *testing.T) {
	t.Parallel()
	each(t, []string{"2.4"}, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		n.Must("chmod", "640", config)
		n.Must("chown", "root:adm", config)
		n.Must("systemctl", "restart", daemon)
		n.answers()
		c := n.ContainerRun("work")
		before, effect, starts := n.everything(), n.effect(), n.starts()
		pid := n.MainPID(daemon)
		check.Has(t, n.gpuadm(0, "plan").Stdout, "Nothing was touched.", "plan:")
		n.gpuadm(3, "plan", "--exit-code")
		n.gpuadm(3, "status")
		check.None(t, before.Touched(n.everything()), "plan and status touched:")
		check.That(t, n.MainPID(daemon) == pid, "plan or status has restarted containerd")
		check.That(t, n.Exec("test", "-e", state).Exit != 0, "plan or status has begun a journal")

		n.gpuadm(0, "apply")
		n.working()
		n.configured()
		s := n.starts()
		check.That(t, s == starts+1, "containerd started %d times for one apply", s-starts)
		check.That(t, c.Runs(), "the container did not survive apply")
		n.gpuadm(0, "status")

		pid = n.MainPID(daemon)
		applied := n.everything()
		r := n.gpuadm(0, "apply")
		check.That(t, r.Stdout == "Nothing to do.\n", "apply again: %s", r)
		if diff := applied.Touched(n.everything()); diff != "" || n.MainPID(daemon) != pid {
			t.Errorf("apply again: containerd's process %d, was %d; touched:\n%s", n.MainPID(daemon), pid, diff)
		}

		n.gpuadm(0, "undo", "--yes")
		n.working()
		check.None(t, before.Diff(n.everything()), "undo did not undo:")
		e := n.effect()
		check.That(t, e.DefaultRuntime == effect.DefaultRuntime && len(e.Runtimes) == len(effect.Runtimes),
			"after undo containerd's default is %q, was %q", e.DefaultRuntime, effect.DefaultRuntime)
		s = n.starts()
		check.That(t, s == starts+2, "containerd started %d times for apply and undo", s-starts)
		check.That(t, c.Runs(), "the container did not survive undo")
		n.gpuadm(3, "status")
		left := n.leftovers()
		check.That(t, len(left) == 0, "left behind: %v", left)
	})
}

// TestLabRuntimeChanged: what an earlier node.toml had containerd do goes with it, and containerd's
// own judgement of the change does not take that for a change outside gpuadm.
func TestLabRuntimeChanged(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"", "2.4"} {
		n := boot(t, lab.Options{Dist: "trixie", Containerd: engine, GPUs: 8})
		before := n.effect()
		for _, want := range []struct{ spec, handler, byDefault string }{
			{"set_as_default = true", "nvidia", "nvidia"},
			{"handler = \"gpu\"\nset_as_default = true", "gpu", "gpu"},
			{"handler = \"gpu\"", "gpu", before.DefaultRuntime},
			{"cdi = false", "nvidia", before.DefaultRuntime},
		} {
			n.Put(specFile, "format = 1\n[runtime]\n"+want.spec+"\n", 0o644)
			n.gpuadm(0, "apply")
			n.working()
			is := n.effect()
			check.That(t, is.DefaultRuntime == want.byDefault && len(is.Runtimes) == len(before.Runtimes)+1,
				"%s, %s: default %q of %v", n.Options, want.spec, is.DefaultRuntime, is.Runtimes)
			_, there := is.Runtimes[want.handler]
			check.That(t, there, "%s, %s: no %s in %v", n.Options, want.spec, want.handler, is.Runtimes)
		}
	}
}

const (
	docker     = "docker.service"
	dockerFile = "/etc/docker/daemon.json"
	// In a container of systemd-nspawn there is neither a network to configure nor an overlay on
	// the overlay.
	dockerText = "{\n    \"storage-driver\": \"vfs\",   \"iptables\": false,\n    \"bridge\": \"none\",\n    \"live-restore\": LIVE,\n    \"max-concurrent-uploads\": 7\n}"
)

// bootDocker boots a host with Debian 13's Docker, configured by its owner, and starts a container.
func bootDocker(t *testing.T, live, spec string) (n node, process string) {
	t.Helper()
	n = node{lab.Boot(t, lab.Options{Dist: "trixie", Docker: true, GPUs: 8}), t}
	n.Put(dockerFile, strings.Replace(dockerText, "LIVE", live, 1), 0o640)
	n.Put(specFile, "format = 1\n[runtime]\nengine = \"docker\"\n"+spec, 0o644)
	n.Must("systemctl", "restart", docker)
	return n, n.DockerRun("work")
}

// docker says what Docker has loaded.
func (n node) docker() (runtimes, byDefault, cdi string) {
	n.t.Helper()
	f := strings.Split(strings.TrimSpace(n.Must("docker", "info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}|{{.DefaultRuntime}}|{{.CDISpecDirs}}")), "|")
	return f[0], f[1], f[2]
}

// TestLabDocker: apply has Docker 26.1 know the runtime and CDI, and a container survives the
// restart; apply again does nothing; undo brings back every byte, and a Docker that has forgotten
// both. That a kill and a power loss end well is held by the laws at every touch.
func TestLabDocker(t *testing.T) {
	t.Parallel()
	n, process := bootDocker(t, "true", "set_as_default = true\n")
	files := func() lab.Tree { return n.Tree([]string{"/etc", "/var/lib"}, state, "/var/lib/docker") } // Docker writes its own there
	before := files()
	n.gpuadm(3, "plan", "--exit-code")
	check := func(when, runtime, cdi, byDefault string) {
		t.Helper()
		runtimes, is, dirs := n.docker()
		if strings.Contains(runtimes, "nvidia") != (runtime != "") || strings.Contains(dirs, "/etc/cdi") != (cdi != "") || is != byDefault {
			t.Errorf("%s: runtimes %q, default %s, CDI %s", when, runtimes, is, dirs)
		}
		if n.DockerProcess("work") != process {
			t.Errorf("%s: the container did not survive", when)
		}
	}

	n.gpuadm(0, "apply")
	check("applied", "nvidia", "CDI", "nvidia")
	if r := n.gpuadm(0, "apply"); r.Stdout != "Nothing to do.\n" {
		t.Errorf("apply again: %s", r)
	}
	n.gpuadm(0, "status")
	n.gpuadm(0, "undo", "--yes")
	check("undone", "", "", "runc")
	if diff := before.Diff(files()); diff != "" {
		t.Errorf("undo did not bring back:\n%s", diff)
	}
}

// TestLabDockerWithoutLiveRestore: a runtime is reloaded, under which nothing stops; a restart for
// CDI would stop containers, and waits for consent. A daemon.json that Docker refuses is refused
// before anything is touched.
func TestLabDockerWithoutLiveRestore(t *testing.T) {
	t.Parallel()
	n, process := bootDocker(t, "false", "cdi = false\n")
	pid := n.MainPID(docker)
	n.gpuadm(0, "apply")
	if runtimes, _, _ := n.docker(); !strings.Contains(runtimes, "nvidia") || n.MainPID(docker) != pid || n.DockerProcess("work") != process {
		t.Errorf("runtimes %q; Docker is process %d, was %d", runtimes, n.MainPID(docker), pid)
	}
	n.Put(specFile, "format = 1\n[runtime]\nengine = \"docker\"\n", 0o644)
	file := n.Get(dockerFile)
	r := n.gpuadm(1, "apply")
	check.That(t, strings.Contains(r.Stderr, "stop-containers") && n.Get(dockerFile) == file && n.MainPID(docker) == pid, "a restart that stops a container: %s", r)
	n.gpuadm(0, "apply", "--allow", "stop-containers")
	_, _, cdi := n.docker()
	check.That(t, strings.Contains(cdi, "/etc/cdi") && n.MainPID(docker) != pid, "CDI %s", cdi)
	n.gpuadm(0, "undo", "--to", "all")
	got, want := n.Get(dockerFile), strings.Replace(dockerText, "LIVE", "false", 1)
	check.That(t, got == want, "after undo:\n%s", got)
	for text, why := range map[string]string{`{"no-such-key": 1}`: "no-such-key", "{,}": "line 1"} {
		n.Put(dockerFile, text, 0o644)
		r := n.gpuadm(1, "apply")
		check.That(t, strings.Contains(r.Stderr, why) && n.Get(dockerFile) == text, "%s: %s", text, r)
	}
}

// TestLabDockerFlags: Docker refuses a key that its unit's options and its file both have, but for
// runtimes. The plan says so, with the file that has the option, and a Docker that runs goes on.
// Units as in NVIDIA/nvidia-docker issues 490 and 1002.
func TestLabDockerFlags(t *testing.T) {
	t.Parallel()
	n, _ := bootDocker(t, "true", "")
	text := n.Get(dockerFile)
	const unit, options = "/etc/systemd/system/docker.service.d/override.conf", "/etc/sysconfig/docker"
	n.Put(options, "OPTIONS=\"--default-ulimit nofile=32768:65536 --default-runtime=runc\"\n", 0o644)
	start := func(more string) string {
		return "[Service]\nEnvironmentFile=-" + options + "\nExecStart=\nExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock " + more + "\n"
	}
	for _, x := range []struct{ name, unit, file, spec, refused string }{
		{"--default-runtime in the environment", start("$OPTIONS"), text, "set_as_default = true\n", options},
		{"--default-runtime in the drop-in", start("--default-runtime runc"), text, "set_as_default = true\n", unit},
		{"--default-runtime, and none wanted", start("$OPTIONS"), text, "", ""},
		{"--add-runtime", start("--add-runtime=nvidia=/usr/bin/nvidia-container-runtime"), text, "set_as_default = true\n", ""},
		{"hosts beside -H", start(""), strings.Replace(text, "{", "{\"hosts\": [\"unix:///var/run/docker.sock\"],", 1), "", "hosts"},
	} {
		n.Put(unit, x.unit, 0o644)
		n.Put(dockerFile, x.file, 0o640)
		n.Put(specFile, "format = 1\n[runtime]\nengine = \"docker\"\n"+x.spec, 0o644)
		n.Must("systemctl", "daemon-reload")
		n.Exec("systemctl", "restart", docker)
		pid := n.MainPID(docker)
		exit := 0
		if x.refused != "" {
			exit = 1
		}
		plan := n.gpuadm(exit, "plan")
		check.That(t, strings.Contains(plan.Stdout+plan.Stderr, x.refused), "%s: %s", x.name, plan)
		n.gpuadm(exit, "apply")
		if x.refused == "" {
			again := n.gpuadm(0, "apply")
			check.That(t, again.Stdout == "Nothing to do.\n", "%s: %s", x.name, again)
			n.gpuadm(0, "undo", "--to", "all")
		} else {
			check.That(t, x.refused == "hosts" || n.MainPID(docker) == pid, "%s: Docker was restarted", x.name)
		}

		check.That(t, n.Get(dockerFile) == x.file, "%s left:\n%s", x.name, n.Get(dockerFile))
	}
}

// TestLabDrift: what Kubespray and KubeOne do when they run again, and what "containerd config
// default" into the file does, takes the handler away. Status says so, and the next apply, by the
// timer too, repairs it.
func TestLabDrift(t *testing.T) {
	t.Parallel()
	n := boot(t, lab.Options{Dist: "trixie", GPUs: 8})
	n.gpuadm(0, "apply")
	for _, rewritten := range []string{n.Must("containerd", "config", "default"), "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n    default_runtime_name = \"runc\"\n    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n      runtime_type = \"io.containerd.runc.v2\"\n"} {
		n.Put("/etc/containerd/config.toml", rewritten, 0o644)
		n.Must("systemctl", "restart", "containerd")
		says(t, n.gpuadm(3, "status"), "changed outside gpuadm")
		n.gpuadm(0, "apply", "--unattended")
		n.working()
		_, there := n.effect().Runtimes["nvidia"]
		check.That(t, there, "the handler did not come back")
	}
}
