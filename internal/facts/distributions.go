// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"slices"
)

// A distribution is a Kubernetes distribution that starts kubelet and the container engine itself.
type distribution struct {
	engine  *Engine // nil: its kubelet uses an engine of the machine's
	kubelet Kubelet
}

// KubeletUnits are the units that kubelet is, or is a part of, by the names that packages and
// installers give them.
func KubeletUnits() []string {
	units := slices.Concat([]string{"kubelet.service"}, k3sUnits(), rke2Units(), k0sUnits())
	for _, p := range snaps() {
		units = append(units, p.Snap.Kubelet)
	}
	return units
}

func k3sUnits() []string  { return []string{"k3s.service", "k3s-agent.service"} }
func rke2Units() []string { return []string{"rke2-agent.service", "rke2-server.service"} }
func k0sUnits() []string  { return []string{"k0sworker.service", "k0scontroller.service"} }

// findDistributions finds those on this machine. Where each keeps its files was read in its own
// code and in a second source, in November 2026: k0sproject/k0s pkg/component/worker and
// docs/runtime.md; k3s-io/k3s pkg/agent and docs.k3s.io; rancher/rke2 bundle and docs.rke2.io;
// canonical/microk8s microk8s-resources and canonical/microk8s-core-addons; canonical/k8s-snap
// k8s/args and its docs. A distribution that is missing here is found on the running machine by the
// processes of its kubelet and engine (kubelet_endpoint.go).
func (g *gathering) findDistributions(ctx context.Context) (found []distribution) {
	all := []*distribution{
		g.rancher(ctx, "k3s", k3sUnits()...),
		g.rancher(ctx, "rke2", rke2Units()...),
		g.k0s(ctx, k0sUnits()...),
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
