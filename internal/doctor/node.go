// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
)

// gpuResource is the resource under which a device plugin offers whole GPUs.
const gpuResource = "nvidia.com/gpu"

// otherNodeName compares the name in kubelet's certificate with the Node that kubelet registers. A
// cloud provider in kubelet (none since Kubernetes 1.31) names the Node.
func otherNodeName(m *Machine) []Finding {
	kubelet := m.Basics().Kubelet
	if !kubelet.Joined || kubelet.Identity == "" || kubelet.NodeName == "" {
		return nil
	}
	if kubelet.Identity == nodeUser+kubelet.NodeName || providerNamesNode(kubelet) {
		return nil
	}

	isReady := func(c kube.Condition) bool { return c.Type == "Ready" && c.Status == "True" }
	registered, ok := m.Registration()
	if ok && registered.node != nil && slices.ContainsFunc(registered.node.Status.Conditions, isReady) {
		return nil // kubelet was started with the name of the certificate
	}
	return []Finding{{
		Object: kubelet.Kubeconfig,
		What: fmt.Sprintf(
			"the certificate of %s is of %s, and kubelet registers the Node %s",
			kubelet.Kubeconfig, kubelet.Identity, kubelet.NodeName,
		),
		Command: "hostname; sudo kubectl --kubeconfig " + kubelet.Kubeconfig + " auth whoami",
	}}
}

func providerNamesNode(kubelet facts.Kubelet) bool {
	command := append([]string{"kubelet"}, kubelet.Args...)
	provider := facts.Options(command, "cloud-provider")
	return len(provider) > 0 && provider[0] != "external" && provider[0] != ""
}

func noNode(m *Machine) []Finding {
	registered, ok := m.Registration()
	if !ok || registered.node != nil {
		return nil
	}
	selector := "involvedObject.kind=Node,involvedObject.name=" + registered.name
	return []Finding{{
		Object:  registered.name,
		What:    fmt.Sprintf("kubelet runs, and the cluster has no Node %s", registered.name),
		Command: "kubectl get events -A --field-selector " + selector,
	}}
}

func cordoned(m *Machine) []Finding {
	registered, ok := m.Registration()
	if !ok || registered.node == nil || !registered.node.Spec.Unschedulable {
		return nil
	}
	name := registered.name
	return []Finding{{
		Object: name,
		What:   fmt.Sprintf("the Node %s is cordoned and takes no new pods; once its maintenance is over: kubectl uncordon %s", name, name),
		Note:   true,
	}}
}

// repellingTaints returns the taints that can keep a device plugin's pods away. Each DaemonSet
// tolerates those of the Node's conditions, and NVIDIA's and Google's DaemonSets tolerate
// nvidia.com/gpu.
// Sources: kubernetes, pkg/controller/daemon/util/daemonset_util.go
// (AddOrUpdateDaemonPodTolerations) and
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations;
// deployments/static/nvidia-device-plugin.yml of https://github.com/NVIDIA/k8s-device-plugin, and
// cmd/nvidia_gpu/device-plugin.yaml of
// https://github.com/GoogleCloudPlatform/container-engine-accelerators.
func repellingTaints(node *kube.Node) (taints []string) {
	for _, taint := range node.Spec.Taints {
		ofConditions := strings.HasPrefix(taint.Key, "node.kubernetes.io/")
		ofGPUs := taint.Key == gpuResource && taint.Effect == "NoSchedule"
		if ofConditions || ofGPUs || taint.Effect == "PreferNoSchedule" {
			continue
		}
		taints = append(taints, taint.String())
	}
	return taints
}

// pluginPod returns the first pod on this machine with the name of a device plugin or a DRA driver,
// as NAMESPACE/NAME; "" if there is none.
func (r registration) pluginPod() string {
	if i := slices.IndexFunc(r.pods, kube.Pod.OffersGPUs); i >= 0 {
		return r.pods[i].Namespace + "/" + r.pods[i].Name
	}
	return ""
}

// devicePlugin returns the pod of the device plugin on this machine; known is false if there is
// none.
func (r registration) devicePlugin() (pod kube.Pod, known bool) {
	i := slices.IndexFunc(r.pods, kube.Pod.IsDevicePlugin)
	if i < 0 {
		return pod, false
	}
	return r.pods[i], true
}

// logs returns the command that shows what the device plugin says, or which pods are on the Node.
func (r registration) logs() string {
	pod, known := r.devicePlugin()
	if !known {
		return "kubectl get pods -A -o wide --field-selector spec.nodeName=" + r.name
	}
	return "kubectl -n " + pod.Namespace + " logs " + pod.Name
}

// wholeGPUs counts the GPUs that a device plugin offers whole.
func (m *Machine) wholeGPUs() (count int) {
	for _, gpu := range m.answering() {
		if !gpu.Mode && !gpu.Pending {
			count++
		}
	}
	return count
}

// taintRepelsPlugin reads the taints, since there is no pod to read: a DaemonSet creates none for a
// Node whose taints it does not tolerate.
func taintRepelsPlugin(m *Machine) []Finding {
	registered, ok := m.Registration()
	if !ok || registered.node == nil || !registered.listsPods {
		return nil
	}
	if len(m.answering()) == 0 || len(m.plugins()) > 0 || registered.pluginPod() != "" {
		return nil
	}

	taints := repellingTaints(registered.node)
	if len(taints) == 0 {
		return nil
	}
	return []Finding{{
		Object: registered.name,
		What: fmt.Sprintf(
			"the Node %s has the taint %s, and no pod of a device plugin",
			registered.name, strings.Join(taints, ", "),
		),
		Command: "kubectl get daemonsets -A -o wide; kubectl describe node " + registered.name,
	}}
}

// nothingOffers finds a working driver on a Node on which no program offers the GPUs to pods, and
// none is to come: the cluster has no pod of one here.
func nothingOffers(m *Machine) []Finding {
	registered, ok := m.Registration()
	if !ok || registered.node == nil || !registered.listsPods || len(m.answering()) == 0 {
		return nil
	}
	if len(m.plugins()) > 0 || registered.pluginPod() != "" || registered.hasGPUs() || m.registersGPUs() {
		return nil
	}
	return []Finding{{
		Object:  registered.name,
		What:    fmt.Sprintf("no device plugin and no DRA driver runs on the Node %s, and no pod of one is to start there", registered.name),
		Command: "kubectl get daemonsets -A -o wide; kubectl get node " + registered.name + " --show-labels",
	}}
}

// preparesGPUs reports whether a pod has the name of one of the GPU Operator's, or of the plugin's
// chart, that the plugin's pod waits for. Sources: assets of https://github.com/NVIDIA/gpu-operator
// (state-driver, state-container-toolkit, state-operator-validation); internal/plugin/mps.go in
// https://github.com/NVIDIA/k8s-device-plugin.
func preparesGPUs(pod kube.Pod) bool {
	names := []string{
		"nvidia-driver-daemonset",
		"nvidia-container-toolkit-daemonset",
		"nvidia-operator-validator",
	}
	for _, name := range names {
		if strings.HasPrefix(pod.Name, name) {
			return true
		}
	}
	return strings.Contains(pod.Name, "-mps-control-daemon-")
}

// pluginLoops finds a container that kubelet cannot start, or that ends again and again, of a pod
// that offers the GPUs or of a pod for which that pod waits.
func pluginLoops(m *Machine) (found []Finding) {
	registered, ok := m.Registration()
	if !ok || registered.node == nil {
		return nil
	}
	for _, pod := range registered.pods {
		if !pod.OffersGPUs() && !preparesGPUs(pod) {
			continue
		}
		if container := stuckContainer(pod); container.Name != "" {
			found = append(found, m.stuckPlugin(registered, pod, container))
		}
	}

	return found
}

// stuckContainer returns the first container of a pod that does not start; the zero Started if all
// do. Kubelet sorts containers by name, and what offers the GPUs counts more than compute domains.
func stuckContainer(pod kube.Pod) (stuck kube.Started) {
	for _, container := range slices.Concat(pod.Status.Init, pod.Status.Containers) {
		reason := container.State.Waiting.Reason
		isStuck := strings.HasSuffix(reason, "BackOff") || strings.HasSuffix(reason, "Error")
		if isStuck && (stuck.Name == "" || stuck.Name == computeDomains) {
			stuck = container
		}
	}
	return stuck
}

// computeDomains is the container of the DRA driver's pod that serves compute domains. Without it
// the pod's other container offers the GPUs all the same.
// Source: templates/kubeletplugin.yaml in https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu;
// its pull 1013.
const computeDomains = "compute-domains"

// stuckPlugin describes such a pod, by the container that does not start.
func (m *Machine) stuckPlugin(registered registration, pod kube.Pod, container kube.Started) Finding {
	name := pod.Namespace + "/" + pod.Name
	finding := Finding{
		Object: name,
		What: fmt.Sprintf("the container %s of the pod %s does not start: %s, %d restarts",
			container.Name, name, container.State.Waiting.Reason, container.Restarts),
		Command: fmt.Sprintf("kubectl -n %[1]s logs %[2]s -c %[3]s --previous; kubectl -n %[1]s describe pod %[2]s",
			pod.Namespace, pod.Name, container.Name),
	}
	if layouts := m.notSingle(registered); layouts != "" && strings.Contains(pod.Name, "device-plugin") {
		finding.What += "; the Node's label nvidia.com/mig.strategy is single, and " + layouts
		finding.Fix = "make all partitions of one profile, on each GPU, or set the plugin's MIG strategy to mixed"
	}
	if !strings.Contains(pod.Name, "dra-driver") {
		return finding
	}

	if container.Name == computeDomains {
		finding.Part = computeDomains
		finding.Fix = "read why it ends; where no pod here spans nodes over NVLink, leave this part out: " +
			"resources.computeDomains.enabled=false in the chart's values"
		if why := m.lacksComputeDomains(); why != "" {
			finding.What += "; " + why
		}
	}

	if file, fault := m.damagedCheckpoint(); fault != "" {
		finding.What += "; of its checkpoint " + file + ": " + fault
		finding.Fix = "drain the node, so that no pod holds a claim, and remove the checkpoint: the driver writes a new one"
		finding.Command = withoutCheckpoint(registered.name, file, pod)
	}

	return finding
}

// MIG manager's labels on the Node: https://github.com/NVIDIA/mig-parted, deployments/container
// (reconfigure-mig.sh), and https://github.com/NVIDIA/gpu-operator/issues/2833.
const (
	migConfigLabel = "nvidia.com/mig.config"
	migStateLabel  = "nvidia.com/mig.config.state"
	deployLabels   = "nvidia.com/gpu.deploy."
	pausedForMIG   = "paused-for-mig-change"
)

// migManagerStopped finds a change of partitions that NVIDIA's MIG manager has begun and not ended:
// it has failed, or has stopped all that uses the GPUs and waits. While it works, that is as it
// should be, so it is a fault only where something is missing.
func migManagerStopped(m *Machine) []Finding {
	registered, ok := m.Registration()
	if !ok || registered.node == nil {
		return nil
	}
	labels := registered.node.Labels
	var paused []string
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(label, deployLabels) && labels[label] == pausedForMIG {
			paused = append(paused, strings.TrimPrefix(label, deployLabels))
		}
	}

	state := labels[migStateLabel]
	isOpen := state == "failed" || state == "pending" && len(paused) > 0
	if !isOpen {
		return nil
	}
	what := fmt.Sprintf(
		"the Node %s has the label %s=%s for the layout %s",
		registered.name, migStateLabel, state, labels[migConfigLabel],
	)
	if len(paused) > 0 {
		what += "; paused until it ends: " + strings.Join(paused, ", ")
	}
	const again = "kubectl label node %[1]s %[2]s- && kubectl label node %[1]s %[2]s=%[3]s"
	return []Finding{{
		Object:  registered.name,
		What:    what,
		Command: fmt.Sprintf(again, registered.name, migConfigLabel, labels[migConfigLabel]),
		Note:    true,
	}}
}

// hasGPUs reports whether the Node offers GPUs or shares of them, by whichever plugin's resource.
func (r registration) hasGPUs() bool {
	for resource, quantity := range r.node.Status.Allocatable {
		isGPU := strings.Contains(resource, "gpu") || isShare(resource)
		if isGPU && quantity.Count() > 0 {
			return true
		}
	}
	return false
}

// isShare reports whether a resource has the name of partitions or shares of GPUs, or of the GPUs
// of virtual machines, which has capitals: nvidia.com/GRID_T4-1Q. The resources of NVIDIA's network
// cards are nvidia.com's too, such as nvidia.com/hostdev.
// Sources: README of https://github.com/NVIDIA/k8s-device-plugin, and that of
// https://github.com/NVIDIA/kubevirt-gpu-device-plugin;
// https://docs.nvidia.com/networking/display/kubernetes2570/quick-start/host-device-rdma.html.
func isShare(resource string) bool {
	name, isNvidias := strings.CutPrefix(resource, "nvidia.com/")
	hasName := strings.HasPrefix(name, "mig-") || strings.HasPrefix(name, "gpu.")
	return isNvidias && (hasName || name != strings.ToLower(name))
}

// registersGPUs reports whether a DRA driver, or a plugin, has registered GPUs with kubelet: by the
// sockets in its folders. Sources: kubernetes, staging/src/k8s.io/dynamic-resource-allocation
// (kubeletplugin: DRIVER-reg.sock); https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu
// (gpu.nvidia.com).
func (m *Machine) registersGPUs() bool {
	for _, folder := range []string{"plugins_registry", "device-plugins"} {
		names, _ := m.View.ReadDir(path.Join(m.Basics().Kubelet.Folder(), folder))
		isGPU := func(name string) bool {
			return strings.Contains(name, "gpu") && strings.HasSuffix(name, ".sock")
		}
		if slices.ContainsFunc(names, isGPU) {
			return true
		}
	}
	return false
}

// offers counts the devices that the cluster can give to pods, by resource. The Node says it, or
// else kubelet, which leaves out what its plugin calls unhealthy.
func (m *Machine) offers(registered registration) (counts map[string]int64, known bool) {
	if registered.node == nil {
		return m.kubeletOffers()
	}

	counts = map[string]int64{}
	for resource, quantity := range registered.node.Status.Allocatable {
		counts[resource] = quantity.Count()
	}
	return counts, true
}

// kubeletOffers asks kubelet. AllocatableResourcesResponse has devices (1) with resource_name (1)
// and device_ids (2): kubernetes, staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto;
// https://github.com/kubernetes/enhancements (KEP 2403).
func (m *Machine) kubeletOffers() (counts map[string]int64, known bool) {
	const (
		devicesField      = 1
		resourceNameField = 1
		deviceIDsField    = 2
	)
	socket := path.Join(m.Basics().Kubelet.Folder(), "pod-resources", "kubelet.sock")
	answer, err := m.View.Call(m.ctx, socket, "/v1.PodResourcesLister/GetAllocatableResources", nil)
	if err != nil {
		return nil, false
	}

	counts = map[string]int64{}
	err = host.ProtoFields(answer, func(field int, devices []byte) error {
		resource := ""
		return host.ProtoFields(devices, func(inner int, value []byte) error {
			switch {
			case field != devicesField:
			case inner == resourceNameField:
				resource = string(value)
			case inner == deviceIDsField:
				counts[resource]++
			}
			return nil
		})
	})
	return counts, err == nil
}

// offersFewer skips a Node with partitions or shares: a plugin's configuration can rename and
// multiply them.
func offersFewer(m *Machine) []Finding {
	registered, _ := m.Registration()
	offers, known := m.offers(registered)
	if !known || len(m.plugins()) == 0 {
		return nil
	}
	for resource, count := range offers {
		mayBeRenamed := strings.HasPrefix(resource, "nvidia.com/") && !registered.hadWhole()
		isOther := resource != gpuResource && (mayBeRenamed || isShare(resource))
		if isOther && count > 0 {
			return nil
		}
	}

	offered := offers[gpuResource]
	has := int64(m.wholeGPUs())
	if offered >= has || offered > 0 && registered.allHealthy(offered) {
		return nil // the plugin withholds the others on purpose
	}

	why := ""
	socket := facts.PluginSockets + "/nvidia-gpu.sock"
	if offered == 0 && !m.has(socket) {
		why = ", which has not made " + socket
	}
	registered.name = cmp.Or(registered.name, m.Basics().Kubelet.NodeName)
	command := registered.logs()
	if strings.Contains(command, " logs ") {
		command += "; " + strings.Replace(command, " logs ", " delete pod ", 1)
	}
	count := fmt.Sprintf("%d of its %d GPUs", offered, has)
	if offered == 0 {
		count = fmt.Sprintf("none of its %d GPUs", has)
	}
	return []Finding{{
		Object:  registered.name,
		What:    fmt.Sprintf("the Node %s offers %s, though a device plugin runs%s", registered.name, count, why),
		Count:   int(has - offered),
		Command: command,
	}}
}

// hadWhole reports whether the plugin has offered the Node whole GPUs under their usual name.
func (r registration) hadWhole() bool {
	return r.node != nil && r.node.Status.Capacity[gpuResource].Count() > 0
}

// allHealthy reports whether the Node offers all GPUs that the plugin names: allocatable are the
// healthy ones, and the capacity counts all. It is true where the Node is not known.
func (r registration) allHealthy(offered int64) bool {
	return r.node == nil || offered >= r.node.Status.Capacity[gpuResource].Count()
}

// badConditions finds the conditions for which the cluster keeps pods away.
func badConditions(m *Machine) (found []Finding) {
	registered, ok := m.Registration()
	if !ok || registered.node == nil {
		return nil
	}

	for _, condition := range registered.node.Status.Conditions {
		if !isBad(condition) {
			continue
		}
		is := condition.Type + "=" + condition.Status
		what := fmt.Sprintf("the Node %s has the condition %s", registered.name, is)
		if why := cmp.Or(condition.Message, condition.Reason); why != "" {
			what += ": " + why
		}
		found = append(found, Finding{
			Object:  condition.Type,
			What:    what,
			Command: "kubectl describe node " + registered.name,
		})
	}

	return found
}

// isBad knows kubelet's own conditions, and those of node-problem-detector
// (config/kernel-monitor.json of https://github.com/kubernetes/node-problem-detector).
func isBad(condition kube.Condition) bool {
	switch condition.Type {
	case "Ready":
		return condition.Status != "True"
	case "DiskPressure", "MemoryPressure", "PIDPressure", "NetworkUnavailable",
		"KernelDeadlock", "ReadonlyFilesystem":
		return condition.Status == "True"
	}
	return false
}
