// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/kube"
)

// nodePatience bounds all requests to the API server together: doctor answers within two seconds, also without a network.
const nodePatience = time.Second

// registration is the API server's view of this machine.
type registration struct {
	name string
	node *kube.Node // nil where the cluster has none
	pods []kube.Pod // on it
	seen bool       // whether kubelet may list them
}

// Registration asks the API server with kubelet's own identity. ok is false where kubelet does not run, or where the server does not
// answer in time.
func (m *Machine) Registration() (registration, bool) {
	k := m.Facts().Kubelet
	if !k.Joined || k.Kubeconfig == "" || k.Active != "active" || !k.Expired.IsZero() && k.Expired.Before(m.View.Now()) {
		return registration{}, false
	}
	return m.registered.read(m, "this machine's Node in the cluster", func() (registration, error) {
		ctx, end := context.WithTimeoutCause(kube.Within(m.ctx, 0), nodePatience, fmt.Errorf("no answer within %v", nodePatience))
		defer end()
		r := registration{name: k.NodeName}
		c, err := new(kube.Clients).Ask(m.View, kube.From{Kubeconfig: k.Kubeconfig})
		if err != nil {
			return r, err
		}
		r.node, err = c.CachedNode(ctx, r.name)
		if errors.Is(err, kube.Missing) || errors.Is(err, kube.Forbidden) {
			// The command line does not say how a cloud names the Node; the server knows it. Where it knows no such question
			// (before Kubernetes 1.28), the name stays unproven, and the fault is not named.
			is, whoErr := c.Whoami(ctx)
			name, proven := strings.CutPrefix(is.Username, "system:node:")
			if whoErr != nil || !proven {
				return r, err
			}
			r.name = name
			r.node, err = c.Node(ctx, name)
		}
		if errors.Is(err, kube.Missing) {
			return registration{name: r.name}, nil
		} else if err != nil {
			return r, err
		}
		r.pods, err = c.Pods(ctx, r.name)
		r.seen = err == nil
		return r, nil
	})
}

func noNode(m *Machine) []Finding {
	r, ok := m.Registration()
	if !ok || r.node != nil {
		return nil
	}
	return []Finding{{
		Object: r.name, What: fmt.Sprintf("kubelet runs, and the cluster has no Node %s", r.name),
		Command: "sudo systemctl restart " + m.Facts().Kubelet.Unit,
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

// repelling are the taints that can keep a device plugin's pods away. Each DaemonSet tolerates those of the Node's conditions, and
// NVIDIA's and Google's DaemonSets tolerate nvidia.com/gpu. Sources: kubernetes, pkg/controller/daemon/util/daemonset_util.go
// (AddOrUpdateDaemonPodTolerations) and https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations;
// deployments/static/nvidia-device-plugin.yml of https://github.com/NVIDIA/k8s-device-plugin, and cmd/nvidia_gpu/device-plugin.yaml of
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

// whole are the GPUs that a device plugin offers as such.
func (m *Machine) whole() (n int) {
	for _, g := range m.answering() {
		if !g.Mode && !g.Pending {
			n++
		}
	}
	return n
}

// repelled reads the taints: a DaemonSet creates no pod for a Node that it does not tolerate, so there is no pod to read.
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

// offersFewer leaves alone what a plugin's configuration can rename or multiply: partitions and shares have other names.
func offersFewer(m *Machine) []Finding {
	r, ok := m.Registration()
	if !ok || r.node == nil || len(m.plugins()) == 0 {
		return nil
	}
	for name, n := range r.node.Status.Allocatable {
		if strings.HasPrefix(name, "nvidia.com/") && name != "nvidia.com/gpu" && n.Count() > 0 {
			return nil
		}
	}
	offered, has := r.node.Status.Allocatable["nvidia.com/gpu"].Count(), m.whole()
	if offered >= int64(has) || offered > 0 && offered >= r.node.Status.Capacity["nvidia.com/gpu"].Count() {
		return nil // allocatable are the healthy ones of those that the plugin names: others are withheld on purpose
	}
	namespace, pod, _ := strings.Cut(cmp.Or(r.pluginPod(), "NAMESPACE/POD"), "/")
	return []Finding{{
		Object: r.name, What: fmt.Sprintf("the Node %s offers %d of the driver's %d GPUs, and a device plugin runs", r.name, offered, has),
		Command: fmt.Sprintf("kubectl -n %s logs %s; kubectl -n %s delete pod %s", namespace, pod, namespace, pod),
	}}
}

// unready are the conditions by which the cluster keeps pods away: kubelet's own, and those of node-problem-detector
// (config/kernel-monitor.json of https://github.com/kubernetes/node-problem-detector).
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
