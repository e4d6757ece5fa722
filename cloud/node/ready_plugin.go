// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// noOffer waits for the device plugin or DRA driver that offers the GPUs, and says what keeps it
// off the node. gpuadm would keep the startup taint for ever if the device plugin lacks the
// toleration, and nothing on this node would show why: a DaemonSet makes no pod for a node whose
// taints it does not tolerate.
func (r readyStage) noOffer(ctx context.Context, v host.View, n *kube.Node, w trouble.Wait) error {
	see := "see that NVIDIA's device plugin or DRA driver runs on this node: " + podsOn(n.Name)
	taints := repelling(n)
	pod, known := r.plugin(ctx, v, n.Name)
	switch {
	case len(taints) == 0, pod != "":
		if pod != "" {
			see = "the pod " + pod + " runs here; its log says what it sees: kubectl -n " + strings.Replace(pod, "/", " logs ", 1)
		}
		w.Try = []string{see}
		return w
	case known:
		w.For += fmt.Sprintf(", and no device plugin runs here: the node has the taint %s, and pods that do not tolerate it stay away", shownTaints(taints))
	default:
		w.For += fmt.Sprintf("; a device plugin that does not tolerate the taint %s stays away", shownTaints(taints))
	}
	w.Err, w.Try = pluginStaysAway, []string{"add to the pod template of the device plugin's DaemonSet: tolerations: [" + tolerations(taints) + "]", see}
	return w
}

// podsOn returns the command that lists the pods of a node.
func podsOn(node string) string {
	return "kubectl get pods -A -o wide --field-selector spec.nodeName=" + node
}

// repelling returns the taints that keep a DaemonSet's pods off, without those of Kubernetes' own
// conditions, which each DaemonSet tolerates. Source: kubernetes,
// pkg/controller/daemon/util/daemonset_util.go, AddOrUpdateDaemonPodTolerations.
func repelling(n *kube.Node) []kube.Taint {
	return slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t kube.Taint) bool {
		return t.Effect == "PreferNoSchedule" || strings.HasPrefix(t.Key, "node.kubernetes.io/")
	})
}

func shownTaints(taints []kube.Taint) string {
	var names []string
	for _, t := range taints {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// tolerations returns the tolerations that a pod template needs, in YAML.
func tolerations(taints []kube.Taint) string {
	var list []string
	for _, t := range taints {
		list = append(list, fmt.Sprintf("{key: %s, operator: Exists, effect: %s}", t.Key, t.Effect))
	}
	return strings.Join(list, ", ")
}

// plugin names the pod on this node that is named like a device plugin or DRA driver, "" if there
// is none; known is false if gpuadm may not list pods: kubelet may list those of its node, the
// ServiceAccount none.
func (r readyStage) plugin(ctx context.Context, v host.View, node string) (pod string, known bool) {
	c, err := r.session.ask(v, r.who)
	if err != nil {
		return "", false
	}
	pods, err := c.Pods(ctx, node)
	if err != nil {
		return "", false
	}
	for _, p := range pods {
		if strings.Contains(p.Name, "device-plugin") || strings.Contains(p.Name, "dra-driver") {
			return p.Namespace + "/" + p.Name, true
		}
	}
	return "", true
}

// pluginServes says whether NVIDIA's device plugin runs. Kubelet keeps showing zero devices of a
// plugin that was removed (kubernetes issues 92396 and 52510), so a zero alone does not show a
// plugin. A killed plugin leaves its socket, so gpuadm calls the plugin. Sources for the name and
// the call: NVIDIA/k8s-device-plugin, internal/plugin/server.go; k8s.io/kubelet,
// deviceplugin/v1beta1/api.proto.
func pluginServes(ctx context.Context, v host.View) bool { return pluginSocket(ctx, v) != "" }

// pluginSocket returns the socket at which the plugin answers, "" if it does not.
func pluginSocket(ctx context.Context, v host.View) string {
	names, _ := v.ReadDir(facts.PluginSockets)
	for _, name := range names {
		if !strings.HasPrefix(name, "nvidia") || !strings.HasSuffix(name, ".sock") {
			continue
		}
		socket := path.Join(facts.PluginSockets, name)
		if _, err := v.Call(ctx, socket, "/v1beta1.DevicePlugin/GetDevicePluginOptions", nil); err == nil {
			return socket
		}
	}
	return ""
}
