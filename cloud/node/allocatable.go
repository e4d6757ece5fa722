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
	if !r.spec.Node.WaitForAllocatable && !comparesOffer(r.spec, *r.facts.Driver, n) {
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
	if others := offeredBeside(planned, n); len(others) > 0 {
		return r.explainOtherNames(n, missing, others)
	}
	if offersSome {
		return trouble.Wait{
			For: "the node offers " + strings.Join(missing, ", "),
			Try: append(r.configureTries(), "see what the log of the device plugin says of the others: "+podsOn(n.Name)),
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

// comparesOffer reports whether gpuadm compares what the node offers with what the spec asks for,
// even if wait_for_allocatable is false: where the spec shares or partitions the GPUs, and the
// device plugin offers some under any name. If they differ, the plugin has another configuration,
// and no pod can ask for what gpuadm has made.
func comparesOffer(s spec.Spec, d host.Driver, n *kube.Node) bool {
	if !s.Has("sharing") && !s.Partitions() {
		return false
	}
	if _, _, err := plannedResources(s, d); err != nil {
		return false
	}
	return len(offeredBeside(nil, n)) > 0
}

// offeredBeside returns what the node offers of GPUs and partitions under other names than the
// planned ones: "2 nvidia.com/gpu". What the plugin no longer offers stays in the list, as 0.
func offeredBeside(planned map[string]int, n *kube.Node) (others []string) {
	for _, name := range slices.Sorted(maps.Keys(n.Status.Allocatable)) {
		isGPU := name == wholeGPU || strings.HasPrefix(name, partitionResource(""))
		_, isPlanned := planned[name]
		count := n.Status.Allocatable[name].Count()
		if isGPU && !isPlanned && count > 0 {
			others = append(others, fmt.Sprintf("%d %s", count, name))
		}
	}
	return others
}

// explainOtherNames waits until the device plugin offers the GPUs by the names that the spec asks
// for. Its MIG strategy decides them: its own default is none, which offers a GPU in MIG mode as a
// whole, and the GPU Operator's is single.
// Sources: README of https://github.com/NVIDIA/k8s-device-plugin ("migStrategy"); mig.strategy in
// the values of https://github.com/NVIDIA/gpu-operator, deployments/gpu-operator.
func (r readyStage) explainOtherNames(n *kube.Node, missing, others []string) error {
	const says = "the node offers %s, and %s: the device plugin's migStrategy is not %q"
	return trouble.Wait{
		For: fmt.Sprintf(says, strings.Join(missing, ", "), strings.Join(others, ", "), strategyOn(r.spec, *r.facts.Driver)),
		Try: append(r.configureTries(), "see what the plugin says: "+podsOn(n.Name)),
		Err: offersOther,
	}
}

// configureTries says how the device plugin gets the configuration that the spec asks for; nil
// where its own default serves.
func (r readyStage) configureTries() []string {
	if !r.spec.Has("sharing") && !r.spec.Partitions() {
		return nil
	}

	strategy := strategyOn(r.spec, *r.facts.Driver)
	var tries []string
	if strategy != r.spec.Strategy() { // manifest knows the spec alone
		tries = append(tries, `write strategy = "`+strategy+`" in [sharing]: this machine also has GPUs without partitions`)
	}
	tries = append(tries, "give the device plugin its configuration: "+trouble.Command("manifest device-plugin")+
		" prints it, and the label that selects it")
	if r.spec.Partitions() {
		tries = append(tries,
			"with the GPU Operator and without such a label: mig.strategy="+strategy+" in its values",
			"or write in [sharing] the strategy that the plugin has")
	}
	return tries
}

// plannedResources returns the number of each resource that the device plugin will offer for the
// GPUs' state, by name, and the number of devices.
// Source: https://github.com/NVIDIA/k8s-device-plugin, internal/rm and README: with strategy none
// partitions do not count; single offers them all under the GPUs' own name; mixed offers each kind
// under its own name, and whole GPUs too.
func plannedResources(s spec.Spec, d host.Driver) (planned map[string]int, devices int, err error) {
	offers, why := offersOf(d)
	if why != "" {
		return nil, 0, fmt.Errorf("cannot say what the device plugin shall offer: %s", why)
	}
	strategy := s.StrategyFor(offers)
	if t := s.Single(offers); t != nil && strategy == "single" {
		return nil, 0, t
	}

	planned = map[string]int{}
	for _, o := range offers {
		devices += len(o.Kinds)
		if !o.MIG {
			devices++
		}
		switch {
		case strategy == "none", !o.MIG:
			planned[wholeGPU]++
		case strategy == "single":
			planned[wholeGPU] += len(o.Kinds)
		default:
			for _, kind := range o.Kinds {
				planned[partitionResource(kind)]++
			}
		}
	}
	for name := range planned {
		planned[name] *= s.Sharing.Replicas()
	}
	return planned, devices, nil
}

// offersOf is what the GPUs have for pods; why is set where the driver does not say.
func offersOf(d host.Driver) (offers []spec.Offers, why string) {
	for _, g := range d.GPUs {
		partitions, why := migDevices(g)
		if why != "" {
			return nil, why
		}
		offer := spec.Offers{GPU: fmt.Sprintf("GPU %d", g.Index), Model: g.Name, MIG: g.Mode}
		for _, p := range partitions {
			offer.Kinds = append(offer.Kinds, p.name)
		}
		offers = append(offers, offer)
	}
	return offers, ""
}

// strategyOn is the strategy that the device plugin needs on a machine.
func strategyOn(s spec.Spec, d host.Driver) string {
	offers, _ := offersOf(d)
	return s.StrategyFor(offers)
}
