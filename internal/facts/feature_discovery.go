// SPDX-License-Identifier: Apache-2.0

package facts

import "strings"

// gfd returns the sign that GPU Feature Discovery labels this node; "" if there is none.
//
// It runs in a pod and hands its labels over either in the API or in a file, both to Node Feature
// Discovery. The link that kubelet keeps in /var/log/containers for each container names pod and
// container. It exists from the boot on, before kubelet has started the pod again. Source:
// https://github.com/NVIDIA/k8s-device-plugin, cmd/gpu-feature-discovery and the names in
// deployments/helm; kubernetes' pkg/kubelet/kuberuntime/legacy.go for the links.
func (g *gathering) gfd() string {
	if !g.v.Live() {
		return ""
	}

	const (
		features = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
		logs     = "/var/log/containers"
	)
	if g.exists(features) {
		return features
	}
	for _, name := range g.list(logs) {
		if strings.Contains(name, "gpu-feature-discovery") {
			return logs + "/" + name
		}
	}

	if pids := g.processes("gpu-feature-dis"); len(pids) > 0 { // gpu-feature-discovery
		return "process " + pids[0]
	}
	return ""
}
