// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"github.com/gpuadm/gpuadm/internal/platform"
)

// owner finds out which program rewrites the node's /etc/containerd/config.toml, at boot or when
// the node is provisioned: that program overwrites other changes. It returns the owner and the sign
// seen.
// Flatcar and plain distributions rewrite nothing; eks-hybrid does so only when its administrator
// calls it.
func (g *gathering) owner(os OS) (owner, why string) {
	why = g.cloud.ManagedWhy
	if by := platform.Of(g.cloud.Managed).Engine.Writer; by != "" {
		return by, why
	}
	switch os.ID {
	case "bottlerocket", "cos", "talos":
		// /etc is made at each boot, from settings or from the image.
		return os.ID, "ID=" + os.ID + " in os-release"
	}
	return "", ""
}
