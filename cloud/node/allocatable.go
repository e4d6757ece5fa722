// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// waitForOffer waits, if the spec asks for it, until the cluster can allocate the planned number of
// this node's GPUs. The Node's status counts only after kubelet has reported in this boot: until
// the device plugin has registered again the API server shows the old number.
func (r readyStage) waitForOffer(ctx context.Context, v host.View, n *kube.Node) error {
	if !r.spec.Node.WaitForAllocatable && !offersShared(r.spec, *r.facts.Driver, n) {
		return nil
	}
	if n.Status.NodeInfo.BootID != r.facts.BootID {
		return trouble.Wait{
			For: "kubelet has not reported since this boot",
			Try: []string{"systemctl status kubelet; journalctl -u kubelet"},
			Err: notReported,
		}
	}
	planned, devices, err := plannedResources(r.spec, *r.facts.Driver)
	if err != nil {
		return err
	}

	var missing []string
	offersSome := false
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		count := n.Status.Allocatable[name].Count()
		offersSome = offersSome || count > 0
		if count != int64(planned[name]) {
			missing = append(missing, fmt.Sprintf("%d of %d %s", count, planned[name], name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if offersSome {
		return trouble.Wait{
			For: "the node offers " + strings.Join(missing, ", "),
			Try: []string{"see what the log of the device plugin says of the others: " + podsOn(n.Name)},
			Err: offersOther,
		}
	}

	if !pluginServes(ctx, v) { // it may be the driver for dynamic allocation
		count, published, err := r.sliceDevices(ctx, v, n.Name)
		switch {
		case err != nil:
			return err
		case published && count == devices:
			return nil
		case published:
			missing = []string{fmt.Sprintf("%d of %d devices of %s", count, devices, draDriver)}
		}
	}
	return r.explainNoOffer(ctx, v, n, "the node offers "+strings.Join(missing, ", "))
}

// sliceDevices counts the devices that the DRA driver publishes; ok is false if it publishes none.
func (r readyStage) sliceDevices(ctx context.Context, v host.View, node string) (count int, ok bool, err error) {
	client, err := r.session.reader(v, r.identity)
	if err != nil {
		return 0, false, err
	}
	byDriver, err := client.Slices(ctx, node)
	count, ok = byDriver[draDriver]
	return count, ok, err
}

// offersShared reports whether the node offers devices that [sharing] counts: then gpuadm compares
// their number with [sharing], even if wait_for_allocatable is false. If the numbers differ, the
// device plugin has another configuration.
func offersShared(s spec.Spec, d host.Driver, n *kube.Node) bool {
	if !s.Has("sharing") {
		return false
	}
	planned, _, err := plannedResources(s, d)
	if err != nil {
		return false
	}
	for name := range planned {
		if n.Status.Allocatable[name].Count() > 0 {
			return true
		}
	}
	return false
}

// plannedResources returns the number of each resource that the device plugin will offer for the
// GPUs' state, by name, and the number of devices.
// Source: https://github.com/NVIDIA/k8s-device-plugin, internal/rm and README: with strategy none
// partitions do not count; single offers them all under the GPUs' own name; mixed offers each kind
// under its own name, and whole GPUs too.
func plannedResources(s spec.Spec, d host.Driver) (planned map[string]int, devices int, err error) {
	const gpu = "nvidia.com/gpu"
	planned = map[string]int{}
	var offers []spec.Offers
	for _, g := range d.GPUs {
		partitions, why := migDevices(g)
		if why != "" {
			return nil, 0, fmt.Errorf("cannot say what the device plugin shall offer: %s", why)
		}
		offer := spec.Offers{GPU: fmt.Sprintf("GPU %d", g.Index), Model: g.Name, MIG: g.Mode}
		for _, p := range partitions {
			offer.Kinds = append(offer.Kinds, p.name)
		}
		offers = append(offers, offer)

		devices += len(partitions)
		if !g.Mode {
			devices++
		}
		switch {
		case s.Sharing.Strategy == "none", s.Sharing.Strategy == "", !g.Mode:
			planned[gpu]++
		case s.Sharing.Strategy == "single":
			planned[gpu] += len(partitions)
		default:
			for _, p := range partitions {
				planned["nvidia.com/mig-"+p.name]++
			}
		}
	}

	if t := s.Sharing.Single(offers); t != nil {
		return nil, 0, t
	}
	if n, ok := planned[gpu]; ok { // partitions under names of their own are not shared
		planned[gpu] = n * s.Sharing.Replicas()
	}
	return planned, devices, nil
}
