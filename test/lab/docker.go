// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import "strings"

// dockerDist is the distribution with a Docker that knows --validate and CDI: Debian 13's 26.1; Debian 12's 20.10 has neither.
const dockerDist = "trixie"

// dockerLayer has Docker and its client: of Options.Docker.
func dockerLayer() layer { return layer{"docker", "1", []string{"docker.io", "docker-cli"}, nil} }

// DockerRun starts a container that stays until it is killed, by Docker, and returns its process. Its image is made here.
func (h *Host) DockerRun(name string) (pid string) {
	h.t.Helper()
	h.image.Do(func() {
		h.Must("sh", "-c", "mkdir -p /run/image/bin && cp /bin/busybox /run/image/bin/sh && cp /bin/busybox /run/image/bin/sleep && "+
			"tar -C /run/image -c . | docker import - lab:local")
	})
	h.Must("docker", "run", "--detach", "--network=none", "--name", name, "lab:local", "/bin/sh", "-c", "trap exit TERM; while sleep 1; do :; done")
	return h.DockerProcess(name)
}

// DockerProcess is the process of a container that Docker says runs, "0" if it does not run.
func (h *Host) DockerProcess(name string) string {
	h.t.Helper()
	return strings.TrimSpace(h.Must("docker", "inspect", "--format", "{{.State.Pid}}", name))
}
