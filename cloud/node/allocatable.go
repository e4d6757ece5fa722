// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// waitForOffer waits, if the spec asks for it, until the cluster can allocate the planned number of
// this node's GPUs. The Node's status counts only after kubelet has reported in this boot: until
// the device plugin has registered again the API server shows the old number.
func (r readyStage) waitForOffer(ctx context.Context, v host.View, n *kube.Node) error {
	if !r.spec.Node.WaitForAllocatable {
		compares, err := r.comparesOffer(ctx, v, n)
		if err != nil || !compares {
			return err
		}
	}

	if n.Status.NodeInfo.BootID != r.facts.BootID {
		return trouble.Wait{
			For: "kubelet has not reported since this boot",
			Try: []string{r.identity.seeKubelet()},
			Err: notReported,
		}
	}

	planned, devices, err := plannedResources(r.spec, *r.facts.Driver)
	if err != nil {
		return err
	}

	missing, offersSome := missingOffers(planned, n)
	if len(missing) == 0 {
		return nil
	}
	if others := offeredBeside(planned, n); len(others) > 0 || offersSome {
		return r.explainOthers(ctx, v, n, missing, others)
	}

	cause, err := r.strategyCause(ctx, v, n.Name)
	if err != nil {
		return err
	}
	if cause != "" {
		return r.explainOthers(ctx, v, n, missing, nil)
	}
	if err := r.waitForMPS(ctx, v, n, missing); err != nil {
		return err
	}
	if pluginServes(ctx, v) {
		return r.explainNoOffer(ctx, v, n, "the node offers "+strings.Join(missing, ", "))
	}
	return r.waitForSlices(ctx, v, n, devices, missing)
}

// missingOffers lists the planned resources of which the Node does not offer the planned number.
// offersSome reports whether it offers any of them.
func missingOffers(planned map[string]int, n *kube.Node) (missing []string, offersSome bool) {
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		count := n.Status.Allocatable[name].Count()
		offersSome = offersSome || count > 0
		if count != int64(planned[name]) {
			missing = append(missing, fmt.Sprintf("%d of %d %s", count, planned[name], name))
		}
	}
	return missing, offersSome
}

// waitForSlices waits, where no device plugin answers, until the DRA driver publishes the devices.
// With DynamicMIG it lists each device that it could make, so any number is right.
func (r readyStage) waitForSlices(
	ctx context.Context, v host.View, n *kube.Node, devices int, missing []string,
) error {
	count, published, err := r.sliceDevices(ctx, v, n.Name)
	switch {
	case err != nil:
		return err
	case published && (count == devices || r.facts.DynamicMIG != ""):
		return nil
	case published:
		missing = []string{fmt.Sprintf("%d of %d devices of %s", count, devices, draDriver)}
	}

	return r.explainNoOffer(ctx, v, n, "the node offers "+strings.Join(missing, ", "))
}

// sliceDevices counts the devices that the DRA driver publishes; ok is false if it publishes none.
func (r readyStage) sliceDevices(
	ctx context.Context, v host.View, node string,
) (count int, ok bool, err error) {
	client, err := r.session.reader(v, r.identity)
	if err != nil {
		return 0, false, err
	}
	byDriver, err := client.Slices(ctx, node)
	count, ok = byDriver[draDriver]
	return count, ok, err
}

// comparesOffer reports whether gpuadm compares what the node offers with what the spec asks for,
// even if wait_for_allocatable is false: where the spec shares or partitions the GPUs, and a device
// plugin is there. If they differ, the plugin has another configuration, and no pod can ask for
// what gpuadm has made. A plugin that can offer nothing, such as one with strategy single and
// partitions of two kinds, ends, and is started again and again. The error says what could not be
// looked at: gpuadm cannot tell then that there is no plugin.
func (r readyStage) comparesOffer(ctx context.Context, v host.View, n *kube.Node) (bool, error) {
	if !r.spec.Has("sharing") && !r.spec.Partitions() {
		return false, nil
	}
	if _, _, err := plannedResources(r.spec, *r.facts.Driver); err != nil {
		return false, nil
	}
	if len(offeredBeside(nil, n)) > 0 {
		return true, nil
	}
	plugin, err := facts.FindPlugin(ctx, v)
	if err != nil || plugin.Program != "" {
		return err == nil, err
	}
	if !keepsPluginLogs(v) {
		return false, nil
	}
	pods, _ := r.pods(ctx, v, n.Name)
	return slices.ContainsFunc(pods, kube.Pod.IsDevicePlugin), nil
}

// keepsPluginLogs reports whether kubelet keeps the log of a device plugin's pod, also between two
// starts of its container: then the API server is worth a request. A folder is named after the
// pod's namespace, name and UID.
// Source: kubernetes, pkg/kubelet/kuberuntime/helpers.go (BuildPodLogsDirectory), and
// podLogsDir in https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/.
func keepsPluginLogs(v host.View) bool {
	folders, err := v.ReadDir("/var/log/pods")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return slices.ContainsFunc(folders, func(name string) bool {
		return strings.Contains(name, "device-plugin")
	})
}

// offeredBeside returns what the node offers of GPUs and partitions under other names than the
// planned ones: "2 nvidia.com/gpu". What the plugin no longer offers stays in the list, as 0.
func offeredBeside(planned map[string]int, n *kube.Node) (others []string) {
	for _, name := range slices.Sorted(maps.Keys(n.Status.Allocatable)) {
		isGPU := name == spec.WholeGPU || strings.HasPrefix(name, spec.PartitionResource(""))
		_, isPlanned := planned[name]
		count := n.Status.Allocatable[name].Count()
		if isGPU && !isPlanned && count > 0 {
			others = append(others, fmt.Sprintf("%d %s", count, name))
		}
	}
	return others
}

// explainOthers waits until the device plugin offers the GPUs by the names, and in the numbers,
// that the spec asks for. Its MIG strategy decides the names: its own default is none, which offers
// a GPU in MIG mode as a whole, and the GPU Operator's is single.
// Sources: README of https://github.com/NVIDIA/k8s-device-plugin ("migStrategy"); mig.strategy in
// the values of https://github.com/NVIDIA/gpu-operator, deployments/gpu-operator.
func (r readyStage) explainOthers(
	ctx context.Context, v host.View, n *kube.Node, missing, others []string,
) error {
	text := "the node offers " + strings.Join(missing, ", ")
	if len(others) > 0 {
		text += ", and " + strings.Join(others, ", ")
	}
	cause, err := r.strategyCause(ctx, v, n.Name)
	if err != nil {
		return err
	}
	if cause == "" && len(others) > 0 {
		cause = fmt.Sprintf(": the device plugin's migStrategy is not %q", strategyOn(r.spec, *r.facts.Driver))
	}
	return trouble.Wait{
		For: text + cause,
		Try: append(r.configureTries(), "see what the log of the device plugin says: "+pluginLog(ctx, v, n.Name)),
		Err: offersOther,
	}
}

// pluginLog returns the command that leads to the device plugin's log.
func pluginLog(ctx context.Context, v host.View, node string) string {
	plugin, err := facts.FindPlugin(ctx, v)
	if err != nil {
		return podsOn(node)
	}
	return runnerLog(plugin.Runner, node)
}

// strategyCause says that the device plugin has another MIG strategy than the one that the GPUs
// need, and which setting gives it; "" if it has the same, or gpuadm cannot tell. The plugin's
// process is asked, its unit, or the pod that the API server has.
func (r readyStage) strategyCause(ctx context.Context, v host.View, node string) (string, error) {
	plugin, err := facts.FindPlugin(ctx, v)
	if err != nil {
		return "", err
	}
	if plugin.Strategy == "" {
		plugin.Strategy, plugin.From = r.podStrategy(ctx, v, node)
	}
	wanted := strategyOn(r.spec, *r.facts.Driver)
	if plugin.Strategy == "" || plugin.Strategy == wanted {
		return "", nil
	}
	const text = ": the device plugin's migStrategy is %s (%s), and these GPUs need %s"
	return fmt.Sprintf(text, plugin.Strategy, plugin.From, wanted), nil
}

// podStrategy returns the MIG strategy that a pod of the device plugin has in its environment, as
// the GPU Operator and the plugin's chart set it; "" if there is none.
func (r readyStage) podStrategy(ctx context.Context, v host.View, node string) (strategy, from string) {
	pods, _ := r.pods(ctx, v, node)
	for _, p := range pods {
		if !p.IsDevicePlugin() {
			continue
		}
		for _, container := range p.Spec.Containers {
			for _, variable := range container.Env {
				if variable.Name == "MIG_STRATEGY" && variable.Value != "" {
					return variable.Value, "MIG_STRATEGY of the pod " + p.Namespace + "/" + p.Name
				}
			}
		}
	}
	return "", ""
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
func plannedResources(s spec.Spec, d host.Driver) (planned map[string]int, devices int, err error) {
	offers, why := offersOf(d)
	if why != "" {
		return nil, 0, fmt.Errorf("cannot say what the device plugin shall offer: %s", why)
	}
	planned, err = s.Resources(offers)
	if err != nil {
		return nil, 0, err
	}

	for _, o := range offers {
		devices += len(o.Kinds)
		if !o.MIG {
			devices++
		}
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
		offer := spec.Offers{
			GPU:   fmt.Sprintf("GPU %d", g.Index),
			Model: g.Name,
			MIG:   g.Mode,
		}
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
