// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

const (
	docker     = "docker.service"
	dockerFile = "/etc/docker/daemon.json"
	// In a container of systemd-nspawn there is neither a network to configure nor an overlay on the overlay.
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

// TestLabDocker: apply has Docker 26.1 know the runtime and CDI, and a container survives the restart; apply again does nothing; undo
// brings back every byte, and a Docker that has forgotten both. That a kill and a power loss end well is held by the laws at every touch.
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
	n.gpuadm(0, "undo")
	check("undone", "", "", "runc")
	if diff := before.Diff(files()); diff != "" {
		t.Errorf("undo did not bring back:\n%s", diff)
	}
}

// TestLabDockerWithoutLiveRestore: a runtime is reloaded, under which nothing stops; a restart for CDI would stop containers, and
// waits for consent. A daemon.json that Docker refuses is refused before anything is touched.
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
	if r := n.gpuadm(1, "apply"); !strings.Contains(r.Stderr, "stop-containers") || n.Get(dockerFile) != file || n.MainPID(docker) != pid {
		t.Errorf("a restart that stops a container: %s", r)
	}
	n.gpuadm(0, "apply", "--allow", "stop-containers")
	if _, _, cdi := n.docker(); !strings.Contains(cdi, "/etc/cdi") || n.MainPID(docker) == pid {
		t.Errorf("CDI %s", cdi)
	}
	n.gpuadm(0, "undo", "--to", "all")
	if got, want := n.Get(dockerFile), strings.Replace(dockerText, "LIVE", "false", 1); got != want {
		t.Errorf("after undo:\n%s", got)
	}
	for text, why := range map[string]string{`{"no-such-key": 1}`: "no-such-key", "{,}": "line 1"} {
		n.Put(dockerFile, text, 0o644)
		if r := n.gpuadm(1, "apply"); !strings.Contains(r.Stderr, why) || n.Get(dockerFile) != text {
			t.Errorf("%s: %s", text, r)
		}
	}
}
