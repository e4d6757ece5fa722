// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"path"
	"slices"
	"strings"
)

func (g *gathering) docker(ctx context.Context) *Engine {
	e := &Engine{Name: "docker"}
	argv := g.start(ctx, e, []string{"docker.service"}, []string{"/usr/bin/dockerd", "/usr/local/bin/dockerd", "/usr/sbin/dockerd"})
	e.CRI = g.criDockerd(ctx)
	g.started(ctx, e, argv)
	if bare(*e) == 1 && e.Files[0].Data == nil {
		return nil
	}
	return e
}

// k3sDocker is where K3s runs a cri-dockerd of its own: pkg/agent/config/config_linux.go of
// https://github.com/k3s-io/k3s.
const k3sDocker = "/run/k3s/cri-dockerd/cri-dockerd.sock"

// criDockerd is the socket by which kubelet reaches Docker: systemd listens there for cri-dockerd's
// unit, or the program does itself.
// Source: packaging/systemd of https://github.com/Mirantis/cri-dockerd
func (g *gathering) criDockerd(ctx context.Context) string {
	if slices.ContainsFunc(g.distributions, func(d distribution) bool { return socketPath(d.kubelet.Endpoint) == k3sDocker }) {
		return k3sDocker
	}
	s := g.service(ctx, "cri-docker.service")
	if s == nil {
		return ""
	}
	at, _ := strings.CutPrefix(option(g.argv(s), "container-runtime-endpoint"), "unix://")
	if socket := g.service(ctx, "cri-docker.socket"); !path.IsAbs(at) && socket != nil && len(socket.listen) > 0 {
		at = strings.Replace(socket.listen[0], "%t", "/run", 1)
	}
	if !path.IsAbs(at) {
		return "/run/cri-dockerd.sock"
	}
	return at
}
