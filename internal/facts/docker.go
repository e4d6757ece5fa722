// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"path"
	"strings"
)

func (g *gathering) docker(ctx context.Context) *Engine {
	e := &Engine{Name: "docker"}
	argv := g.unitAndBinary(ctx, e, []string{"docker.service"}, []string{
		"/usr/bin/dockerd", "/usr/local/bin/dockerd", "/usr/sbin/dockerd",
	})
	if e.onlyConfig() {
		g.snapDocker(ctx, e)
	}
	e.CRI = g.criDockerd(ctx)
	g.filesAndSocket(ctx, e, argv)

	if e.onlyConfig() && e.Files[0].Data == nil {
		return nil
	}
	return e
}

// snapDocker fills in the Docker of the snap. The snap writes NVIDIA's runtime into its own
// daemon.json, and sees no program of the machine's. Sources: canonical/docker-snap, pulls 153 and
// 161; docker-archive/nestybox.sysbox-ee, issue 23 (its daemon.json, and what it cannot see).
func (g *gathering) snapDocker(ctx context.Context, e *Engine) {
	s := g.service(ctx, "snap.docker.dockerd.service")
	if s == nil {
		return
	}
	e.Unit = s.name
	e.Binary = g.first("/snap/docker/current/bin/dockerd", "/var/lib/snapd/snap/docker/current/bin/dockerd")
	e.Config = "/var/snap/docker/current/config/daemon.json"
	e.Owner = "the snap docker"
	e.Why = s.name
}

// k3sDocker is the socket of the cri-dockerd that K3s runs: pkg/agent/config/config_linux.go of
// https://github.com/k3s-io/k3s.
const k3sDocker = "/run/k3s/cri-dockerd/cri-dockerd.sock"

// criDockerd returns the socket through which kubelet reaches Docker: cri-dockerd listens on it, or
// systemd does so for its unit.
// Source: packaging/systemd of https://github.com/Mirantis/cri-dockerd
func (g *gathering) criDockerd(ctx context.Context) string {
	for _, d := range g.distributions {
		if socketPath(d.kubelet.Endpoint) == k3sDocker {
			return k3sDocker
		}
	}

	s := g.service(ctx, "cri-docker.service")
	if s == nil {
		return ""
	}

	endpoint := option(g.argv(s), "container-runtime-endpoint")
	at := strings.TrimPrefix(endpoint, "unix://")
	if path.IsAbs(at) {
		return at
	}

	// With fd:// as its endpoint it takes the socket from systemd.
	if socket := g.service(ctx, "cri-docker.socket"); socket != nil && len(socket.listen) > 0 {
		at := strings.Replace(socket.listen[0], "%t", "/run", 1)
		if path.IsAbs(at) {
			return at
		}
	}

	return "/run/cri-dockerd.sock"
}
