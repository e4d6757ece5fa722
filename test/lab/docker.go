// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
)

// dockerDist is the distribution with a Docker that knows --validate and CDI: Debian 13's 26.1; Debian 12's 20.10 has neither.
const dockerDist = "trixie"

// dockerPackages are Docker and its client.
func dockerPackages() []string { return []string{"docker.io", "docker-cli"} }

func dockerDir() (string, error) { return layerDir(dockerDist, "docker", "1", dockerPackages()) }

// buildDocker makes the layer of Options.Docker.
func buildDocker(ctx context.Context, log func(string)) error {
	place, err := dockerDir()
	if err != nil {
		return err
	}
	return Cached(place, func(scratch string) error {
		below, err := Rootfs(dockerDist)
		if err != nil {
			return err
		}
		log("apt-get install " + strings.Join(dockerPackages(), " "))
		return InChroot(below, scratch, func(c Chroot) error { return c.install(ctx, dockerPackages()) })
	})
}

func dockerOver(o Options) ([]string, error) {
	if o.Dist != dockerDist {
		return nil, fmt.Errorf("cannot boot a host with Docker on %s: only on %s", o, dockerDist)
	}
	layer, err := dockerDir()
	return over(o.Dist, layer, err)
}

// DockerRun starts a container that stays until it is killed, by Docker, and returns its process. Its image is made here.
func (h *Host) DockerRun(name string) (pid string) {
	h.t.Helper()
	h.image.Do(func() {
		busybox, err := os.ReadFile(h.path("root") + "/bin/busybox")
		if err != nil {
			h.t.Fatalf("cannot read busybox: %v", err)
		}
		image, err := ociImage(imageName, busybox, nil, "/bin/sh")
		if err != nil {
			h.t.Fatal(err)
		}
		if r := h.ExecInput(bytes.NewReader(image), "docker", "load"); r.Exit != 0 {
			h.t.Fatalf("cannot load the image: %s", r)
		}
	})
	h.Must("docker", "run", "--detach", "--network=none", "--name", name, imageName, "/bin/sh", "-c", "trap exit TERM; while sleep 1; do :; done")
	return h.DockerProcess(name)
}

// DockerProcess is the process of a container that Docker says runs, "0" if it does not run.
func (h *Host) DockerProcess(name string) string {
	h.t.Helper()
	return strings.TrimSpace(h.Must("docker", "inspect", "--format", "{{.State.Pid}}", name))
}
