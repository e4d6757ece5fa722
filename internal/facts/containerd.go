// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"

	"github.com/gpuadm/gpuadm/internal/platform"
)

const (
	containerdUnit    = "containerd.service"
	containerdDefault = "/etc/containerd/config.toml"
)

func (g *gathering) containerd(ctx context.Context, os OS) *Engine {
	e := &Engine{Name: "containerd"}
	argv := g.unitAndBinary(ctx, e, []string{containerdUnit}, []string{
		"/usr/bin/containerd", "/usr/local/bin/containerd", "/usr/sbin/containerd",
		"/opt/bin/containerd", "/opt/containerd/bin/containerd",
		"/home/containerd/usr/local/bin/containerd", // on GKE of old
	})

	usual := cmp.Or(platform.SystemOf(os.ID).Config, containerdDefault)
	e.Config = cmp.Or(option(argv, "config", "c"), usual)
	if e.onlyConfig() && !g.exists(e.Config) {
		return nil
	}

	g.filesAndSocket(ctx, e, argv)
	if e.Config == usual { // what the owners write; a unit of the machine's own may name another file
		e.Owner, e.Why = g.owner(os)
	}
	return e
}

// owner finds out which program rewrites the node's /etc/containerd/config.toml, at boot or when
// the node is provisioned: that program overwrites other changes. It returns the owner and the sign
// seen.
// Flatcar and plain distributions rewrite nothing; eks-hybrid does so only when its administrator
// calls it.
func (g *gathering) owner(os OS) (owner, why string) {
	platformOwner := platform.Of(g.cloud.Managed).Engine.Writer
	if platformOwner != "" {
		return platformOwner, g.cloud.ManagedWhy
	}

	systemOwner := platform.SystemOf(os.ID).Engine.Writer
	if systemOwner != "" {
		return systemOwner, "ID=" + os.ID + " in os-release"
	}
	return "", ""
}
