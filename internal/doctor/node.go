// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
)

// otherName compares the name in kubelet's certificate with the Node that kubelet registers. A
// cloud provider in kubelet (none since Kubernetes 1.31) names the Node.
func otherName(m *Machine) []Finding {
	k := m.Facts().Kubelet
	provider := facts.Options(append([]string{"kubelet"}, k.Args...), "cloud-provider")
	if !k.Joined || k.Identity == "" || k.NodeName == "" || k.Identity == nodeUser+k.NodeName || len(provider) > 0 && provider[0] != "external" && provider[0] != "" {
		return nil
	}
	r, ok := m.Registration()
	if ok && r.node != nil && slices.ContainsFunc(r.node.Status.Conditions, func(c kube.Condition) bool { return c.Type == "Ready" && c.Status == "True" }) {
		return nil // kubelet was started with the name of the certificate
	}
	return []Finding{{
		Object: k.Kubeconfig, What: fmt.Sprintf("the certificate of %s is of %s, and kubelet registers the Node %s", k.Kubeconfig, k.Identity, k.NodeName),
		Command: "hostname; sudo kubectl --kubeconfig " + k.Kubeconfig + " auth whoami",
	}}
}

func noNode(m *Machine) []Finding {
	r, ok := m.Registration()
	if !ok || r.node != nil {
		return nil
	}
	return []Finding{{
		Object: r.name, What: fmt.Sprintf("kubelet runs, and the cluster has no Node %s", r.name),
		Command: "kubectl get events -A --field-selector involvedObject.kind=Node,involvedObject.name=" + r.name,
	}}
}

func cordoned(m *Machine) []Finding {
	r, ok := m.Registration()
	if !ok || r.node == nil || !r.node.Spec.Unschedulable {
		return nil
	}
	return []Finding{{
		Object: r.name, Note: true,
		What: fmt.Sprintf("the Node %s is cordoned and takes no new pods; once its maintenance is over: kubectl uncordon %s", r.name, r.name),
	}}
}

// repelling are the taints that can keep a device plugin's pods away. Each DaemonSet tolerates
// those of the Node's conditions, and NVIDIA's and Google's DaemonSets tolerate nvidia.com/gpu.
// Sources: kubernetes, pkg/controller/daemon/util/daemonset_util.go
// (AddOrUpdateDaemonPodTolerations) and
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations;
// deployments/static/nvidia-device-plugin.yml of https://github.com/NVIDIA/k8s-device-plugin, and
// cmd/nvidia_gpu/device-plugin.yaml of
// https://github.com/GoogleCloudPlatform/container-engine-accelerators.
func repelling(n *kube.Node) (list []string) {
	for _, t := range n.Spec.Taints {
		if t.Effect != "PreferNoSchedule" && !strings.HasPrefix(t.Key, "node.kubernetes.io/") && (t.Key != "nvidia.com/gpu" || t.Effect != "NoSchedule") {
			list = append(list, t.String())
		}
	}
	return list
}

// pluginPod is the pod on this machine that looks like one that offers GPUs; "" if there is none.
func (r registration) pluginPod() string {
	i := slices.IndexFunc(r.pods, func(p kube.Pod) bool {
		return strings.Contains(p.Name, "device-plugin") || strings.Contains(p.Name, "dra-driver")
	})
	if i < 0 {
		return ""
	}
	return r.pods[i].Namespace + "/" + r.pods[i].Name
}

// logs shows what the device plugin says.
func (r registration) logs() string {
	namespace, pod, _ := strings.Cut(cmp.Or(r.pluginPod(), "NAMESPACE/POD"), "/")
	return "kubectl -n " + namespace + " logs " + pod
}

// whole are the GPUs that a device plugin offers as such.
func (m *Machine) whole() (n int) {
	for _, g := range m.answering() {
		if !g.Mode && !g.Pending {
			n++
		}
	}
	return n
}

// repelled reads the taints: a DaemonSet creates no pod for a Node that it does not tolerate, so
// there is no pod to read.
func repelled(m *Machine) []Finding {
	r, ok := m.Registration()
	if !ok || r.node == nil || !r.seen || len(m.answering()) == 0 || len(m.plugins()) > 0 || r.pluginPod() != "" {
		return nil
	}
	taints := repelling(r.node)
	if len(taints) == 0 {
		return nil
	}
	return []Finding{{
		Object: r.name, What: fmt.Sprintf("the Node %s has the taint %s, and no pod of a device plugin", r.name, strings.Join(taints, ", ")),
		Command: "kubectl get daemonsets -A -o wide; kubectl describe node " + r.name,
	}}
}

// offers are the devices that the cluster can give to pods, by resource: as the Node says it, or
// else kubelet, which leaves out what its plugin calls unhealthy. AllocatableResourcesResponse has
// devices (1) with resource_name (1) and device_ids (2): kubernetes,
// staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto;
// https://github.com/kubernetes/enhancements (KEP 2403).
func (m *Machine) offers(r registration) (all map[string]int64, known bool) {
	all = map[string]int64{}
	if r.node != nil {
		for name, n := range r.node.Status.Allocatable {
			all[name] = n.Count()
		}
		return all, true
	}
	answer, err := m.View.Call(m.ctx, path.Join(m.Facts().Kubelet.Folder(), "pod-resources", "kubelet.sock"), "/v1.PodResourcesLister/GetAllocatableResources", nil)
	if err != nil {
		return nil, false
	}
	err = host.ProtoFields(answer, func(n int, devices []byte) error {
		name := ""
		return host.ProtoFields(devices, func(of int, value []byte) error {
			switch {
			case n == 1 && of == 1:
				name = string(value)
			case n == 1 && of == 2:
				all[name]++
			}
			return nil
		})
	})
	return all, err == nil
}

// offersFewer leaves alone what a plugin's configuration can rename or multiply: partitions and
// shares have other names.
func offersFewer(m *Machine) []Finding {
	r, _ := m.Registration()
	offers, known := m.offers(r)
	if !known || len(m.plugins()) == 0 {
		return nil
	}
	for name, n := range offers {
		if strings.HasPrefix(name, "nvidia.com/") && name != "nvidia.com/gpu" && n > 0 {
			return nil
		}
	}
	offered, has := offers["nvidia.com/gpu"], int64(m.whole())
	if offered >= has || offered > 0 && (r.node == nil || offered >= r.node.Status.Capacity["nvidia.com/gpu"].Count()) {
		return nil // allocatable are the healthy ones of those that the plugin names: others are withheld on purpose
	}
	name, why := cmp.Or(r.name, m.Facts().Kubelet.NodeName), ""
	if socket := facts.PluginSockets + "/nvidia-gpu.sock"; offered == 0 && !m.has(socket) {
		why = ", which has not made " + socket
	}
	return []Finding{{
		Object: name, What: fmt.Sprintf("the Node %s offers %d of the driver's %d GPUs, and a device plugin runs%s", name, offered, has, why),
		Command: r.logs() + "; " + strings.Replace(r.logs(), " logs ", " delete pod ", 1),
	}}
}

// unready are the conditions by which the cluster keeps pods away: kubelet's own, and those of
// node-problem-detector (config/kernel-monitor.json of
// https://github.com/kubernetes/node-problem-detector).
func unready(m *Machine) (found []Finding) {
	r, ok := m.Registration()
	if !ok || r.node == nil {
		return nil
	}
	for _, c := range r.node.Status.Conditions {
		bad := slices.Contains([]string{"DiskPressure", "MemoryPressure", "PIDPressure", "NetworkUnavailable", "KernelDeadlock", "ReadonlyFilesystem"}, c.Type) && c.Status == "True"
		if bad || c.Type == "Ready" && c.Status != "True" {
			what := fmt.Sprintf("the Node %s has the condition %s=%s", r.name, c.Type, c.Status)
			found = append(found, Finding{Object: c.Type, What: strings.TrimSuffix(what+": "+cmp.Or(c.Message, c.Reason), ": "), Command: "kubectl describe node " + r.name})
		}
	}
	return found
}
