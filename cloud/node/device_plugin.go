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

// explainNoOffer waits for the device plugin or DRA driver that offers the GPUs, and says what
// keeps it off the node. gpuadm would keep the startup taint for ever if the device plugin lacks
// the toleration, and nothing on this node would show why: a DaemonSet makes no pod for a node
// whose taints it does not tolerate.
func (r readyStage) explainNoOffer(ctx context.Context, v host.View, n *kube.Node, offer string) error {
	unit, err := offeringUnit(ctx, v)
	if err != nil {
		return err
	}
	if unit != "" {
		see := "the unit " + unit + " offers the GPUs here; its log says what it sees: journalctl -u " + unit
		return trouble.Wait{For: offer, Try: []string{see}, Err: offersOther}
	}

	pods, known := r.pods(ctx, v, n.Name)
	i := slices.IndexFunc(pods, kube.Pod.OffersGPUs)
	if i >= 0 {
		const text = "the pod %[1]s/%[2]s runs here; its log says what it sees: kubectl -n %[1]s logs %[2]s"
		see := fmt.Sprintf(text, pods[i].Namespace, pods[i].Name)
		return trouble.Wait{For: offer, Try: []string{see}, Err: offersOther}
	}

	see := "check that NVIDIA's device plugin or DRA driver runs on this node: " + podsOn(n.Name)
	taints := repellingTaints(n)
	if len(taints) == 0 {
		return trouble.Wait{For: offer, Try: []string{see}, Err: offersOther}
	}

	text := "; a device plugin that does not tolerate the taint %s stays away"
	if known {
		text = ", and no device plugin runs here: the node has the taint %s, and pods that do not tolerate it stay away"
	}
	return trouble.Wait{
		For: offer + fmt.Sprintf(text, taintTexts(taints)),
		Try: []string{
			"add to the pod template of the device plugin's DaemonSet: tolerations: [" + tolerations(taints) + "]",
			see,
		},
		Err: pluginStaysAway,
	}
}

// offeringUnit returns the enabled unit that offers GPUs to kubelet, as on Bottlerocket and in
// AKS's managed pools; "" if a pod does, or nothing.
func offeringUnit(ctx context.Context, v host.View) (unit string, err error) {
	found, err := facts.Offering(ctx, v)
	for _, r := range found {
		if r.Unit != "" {
			return r.Unit, err
		}
	}

	return "", err
}

// podsOn returns the command that lists the pods of a node.
func podsOn(node string) string {
	return "kubectl get pods -A -o wide --field-selector spec.nodeName=" + node
}

// repellingTaints returns the taints that keep a DaemonSet's pods off, without those of Kubernetes'
// own conditions, which each DaemonSet tolerates. Source: kubernetes,
// pkg/controller/daemon/util/daemonset_util.go, AddOrUpdateDaemonPodTolerations.
func repellingTaints(n *kube.Node) []kube.Taint {
	return slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t kube.Taint) bool {
		return t.Effect == "PreferNoSchedule" || strings.HasPrefix(t.Key, "node.kubernetes.io/")
	})
}

func taintTexts(taints []kube.Taint) string {
	var texts []string
	for _, t := range taints {
		texts = append(texts, t.String())
	}
	return strings.Join(texts, ", ")
}

// tolerations returns the tolerations that a pod template needs, in YAML.
func tolerations(taints []kube.Taint) string {
	var texts []string
	for _, t := range taints {
		texts = append(texts, fmt.Sprintf("{key: %s, operator: Exists, effect: %s}", t.Key, t.Effect))
	}
	return strings.Join(texts, ", ")
}

// pods lists the pods of this node. known is false if gpuadm may not: kubelet's identity may list
// those of its node, the ServiceAccount none.
func (r readyStage) pods(ctx context.Context, v host.View, node string) (pods []kube.Pod, known bool) {
	client, err := r.session.reader(v, r.identity)
	if err != nil {
		return nil, false
	}
	pods, err = client.Pods(ctx, node)
	if err != nil {
		return nil, false
	}
	return pods, true
}

// pluginServes reports whether NVIDIA's device plugin runs. Kubelet keeps showing zero devices of a
// plugin that was removed (kubernetes issues 92396 and 52510), so a zero alone does not show a
// plugin. A killed plugin leaves its socket, so gpuadm calls the plugin. Sources for the name and
// the call: NVIDIA/k8s-device-plugin, internal/plugin/server.go; k8s.io/kubelet,
// deviceplugin/v1beta1/api.proto.
func pluginServes(ctx context.Context, v host.View) bool {
	return pluginSocket(ctx, v) != ""
}

// pluginSocket returns the socket at which the plugin answers, "" if it does not.
func pluginSocket(ctx context.Context, v host.View) string {
	names, _ := v.ReadDir(facts.PluginSockets)
	for _, name := range names {
		if !strings.HasPrefix(name, "nvidia") || !strings.HasSuffix(name, ".sock") {
			continue
		}
		const getOptions = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
		socket := path.Join(facts.PluginSockets, name)
		if _, err := v.Call(ctx, socket, getOptions, nil); err == nil {
			return socket
		}
	}

	return ""
}
