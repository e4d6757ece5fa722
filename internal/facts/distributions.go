// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/platform"
)

// A distribution is a Kubernetes distribution that starts kubelet and the container engine itself.
type distribution struct {
	engine  *Engine // nil: its kubelet uses an engine of the machine's
	kubelet Kubelet
}

// KubeletUnits returns the names that packages and installers give to the units in which kubelet
// runs.
func KubeletUnits() []string {
	units := []string{"kubelet.service"}
	for _, p := range platform.All() {
		units = append(units, p.Units...)
	}
	for _, p := range snaps() {
		units = append(units, p.Snap.Kubelet)
	}
	return units
}

// findDistributions finds the distributions on this machine. Where each keeps its files was read in
// its own code and in a second source, in November 2026: k0sproject/k0s pkg/component/worker and
// docs/runtime.md; k3s-io/k3s pkg/agent and docs.k3s.io; rancher/rke2 bundle and docs.rke2.io;
// canonical/microk8s microk8s-resources and canonical/microk8s-core-addons; canonical/k8s-snap
// k8s/args and its docs. A distribution that is missing here is found on the running machine by the
// processes of its kubelet and engine (kubelet_endpoint.go).
func (g *gathering) findDistributions(ctx context.Context) (found []distribution) {
	all := []*distribution{
		g.rancher(ctx, "k3s", platform.Of("k3s").Units...),
		g.rancher(ctx, "rke2", platform.Of("rke2").Units...),
		g.k0s(ctx, platform.Of("k0s").Units...),
	}
	for _, p := range snaps() {
		all = append(all, g.snap(ctx, p.Name, *p.Snap))
	}

	for _, d := range all {
		if d != nil {
			found = append(found, *d)
		}
	}

	return found
}
