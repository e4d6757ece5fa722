// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"os"
	"strings"

	"github.com/gpuadm/gpuadm/test/must"
)

// Container is a container that was started in a host.
type Container struct {
	h     *Host
	Name  string
	pid   string // the process that containerd says runs it
	start string // when that started, in clock ticks since boot
}

// untilTold stays until it is killed. PID 1 of a container ignores signals it has no handler for,
// and a host's reboot waits 90 s for such a process.
const untilTold = "trap exit TERM; while sleep 1; do :; done"

// ContainerRun starts a container that stays until it is killed, by containerd and runc. Its image
// is made here.
func (h *Host) ContainerRun(name string) *Container {
	h.t.Helper()
	h.image.Do(func() {
		busybox, err := os.ReadFile(h.path("root") + "/bin/busybox")
		must.That(h.t, err == nil, "cannot read busybox: %v", err)
		image := must.Get(ociImage(imageName, busybox, nil, "/bin/sh"))(h.t)
		r := h.ExecInput(bytes.NewReader(image), "ctr", "-n", "lab", "images", "import", "-")
		must.That(h.t, r.Exit == 0, "cannot import the image: %s", r)
	})
	h.Must("ctr", "-n", "lab", "run", "--detach", "--null-io", imageName, name, "/bin/sh", "-c", untilTold)

	c := &Container{h: h, Name: name}
	c.pid = c.task()
	if c.pid == "" {
		h.t.Fatalf("cannot see the container %s: %s", name, h.Exec("ctr", "-n", "lab", "tasks", "list"))
	}
	c.start = c.started()
	return c
}

// Runs says whether the very process that was started still runs, and containerd knows it.
func (c *Container) Runs() bool {
	c.h.t.Helper()
	return c.task() == c.pid && c.started() == c.start && c.start != ""
}

// task is the process that containerd says runs the container; "" if none does.
func (c *Container) task() string {
	c.h.t.Helper()
	for line := range strings.Lines(c.h.Must("ctr", "-n", "lab", "tasks", "list")) {
		field := strings.Fields(line) // name, process, state
		if len(field) == 3 && field[0] == c.Name && field[2] == "RUNNING" {
			return field[1]
		}
	}

	return ""
}

// started is when the process started, in clock ticks since boot; "" if it is gone. Field 22:
// proc_pid_stat(5).
func (c *Container) started() string {
	c.h.t.Helper()
	r := c.h.Exec("cat", "/proc/"+c.pid+"/stat")
	_, after, _ := strings.Cut(r.Stdout, ") ") // the name before it may have spaces
	field := strings.Fields(after)
	if len(field) <= 19 {
		return ""
	}
	return field[19]
}

// dockerDist is the distribution with a Docker that knows --validate and CDI: Debian 13's 26.1;
// Debian 12's 20.10 has neither.
const dockerDist = "trixie"

// dockerLayer has Docker and its client: of Options.Docker.
func dockerLayer() layer {
	return layer{
		name:     "docker",
		recipe:   "1",
		packages: []string{"docker.io", "docker-cli"},
	}
}

// DockerRun starts a container that stays until it is killed, by Docker, and returns its process.
// Its image is made here.
func (h *Host) DockerRun(name string) (pid string) {
	h.t.Helper()
	h.image.Do(func() {
		h.Must("mkdir", "-p", "/run/image/bin")
		h.Must("cp", "/bin/busybox", "/run/image/bin/sh")
		h.Must("cp", "/bin/busybox", "/run/image/bin/sleep")
		h.Must("sh", "-c", "tar -C /run/image -c . | docker import - lab:local")
	})
	h.Must("docker", "run", "--detach", "--network=none", "--name", name,
		"lab:local", "/bin/sh", "-c", untilTold)
	return h.DockerProcess(name)
}

// DockerProcess is the process of a container that Docker says runs, "0" if it does not run.
func (h *Host) DockerProcess(name string) string {
	h.t.Helper()
	return strings.TrimSpace(h.Must("docker", "inspect", "--format", "{{.State.Pid}}", name))
}
